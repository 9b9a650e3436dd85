"""``saki lab``: the embedded pair."""

from __future__ import annotations

from collections.abc import Sequence

from saki import lab
from saki.cli.console import fresh_folder, print_json
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments, LabBuildArguments

SUMMARY = "Rebuild the embedded teacher and student from a seed (about a quarter of an hour on one core)."
EXAMPLE = "saki lab build --seed 0 --out runs/lab"
USAGE = """usage: saki lab [build] [--key value ...]

saki lab          where the embedded pair lies, and its held-out sets
saki lab build    rebuild teacher and student from a seed; saki lab build --help shows the options
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
        "student": str(lab.student_path()),
        "teacher": str(lab.teacher_path()),
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
        raise UsageError("saki lab build needs --out DIR to write the two models to")
    folder = fresh_folder(common.out, "saki lab build")
    folder.mkdir(parents=True, exist_ok=True)
    facts = lab.build_pair(folder, seed=args.seed, progress=True, num_problems=args.num_problems)
    print(f"teacher and student written to {folder}")
    if common.json:
        print_json(facts)
    return 0
