"""``saki lab``: the embedded models."""

from __future__ import annotations

from collections.abc import Sequence

from saki import lab
from saki.cli.console import fresh_folder, print_json
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments
from saki.config.inputs import LabBuildArguments

SUMMARY = "Rebuild the embedded models from a seed (all of them: about 25 minutes on one core)."
EXAMPLE = "saki lab build --seed 0 --out runs/lab"
USAGE = """usage: saki lab [build] [--key value ...]

saki lab          where the embedded models lie, and the held-out sets
saki lab build    rebuild the models, or some of them, from a seed; saki lab build --help shows the options
example: saki lab build --seed 0 --out runs/lab"""


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if argv and argv[0] == "build":
        return build(argv[1:])
    (common,) = CommandParser([CommonArguments], "saki lab", SUMMARY, EXAMPLE).parse(argv)
    facts = {
        **{name: str(lab.shipped_path(name)) for name in lab.MODELS},
        "test_sets": list(lab.TEST_SETS),
    }
    for name, value in facts.items():
        print(f"{name:10} {value if isinstance(value, str) else ', '.join(value)}")
    for name in lab.TEST_SETS:
        problem = lab.test_set(name, 1)[0]
        print(f"  {name:14} {problem.prompt!r} -> {problem.trace!r}")
    if common.json:
        print_json(facts)
    return 0


def build(argv: Sequence[str]) -> int:
    """``saki lab build``."""
    parser = CommandParser([CommonArguments, LabBuildArguments], "saki lab build", SUMMARY, EXAMPLE)
    common, args = parser.parse(argv)
    if not common.out:
        raise UsageError("saki lab build needs --out DIR to write the models to")
    folder = fresh_folder(common.out, "saki lab build")
    folder.mkdir(parents=True, exist_ok=True)
    recipes = [recipe for recipe in lab.RECIPES if recipe.name in args.model_names]
    facts = lab.build_models(folder, args.seed, progress=True, recipes=recipes, num_problems=args.num_problems)
    print(f"{', '.join(facts)} written to {folder}")
    if common.json:
        print_json(facts)
    return 0
