"""``saki eval regrade FOLDER``: the stored samples of an evaluation, graded again without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from saki import lab
from saki.cli.console import print_json
from saki.config import CommandParser, UsageError
from saki.config.benchmarks import benchmark_choices
from saki.config.commands import CommonArguments, RegradeArguments
from saki.config.parsing import read_yaml
from saki.evaluation import (
    Benchmark,
    BenchmarkSpec,
    EvaluationResult,
    GradingPool,
    SampleSet,
    grade_each,
    graders,
    markdown_table,
    read_samples,
    regrade_samples,
    text_table,
    write_samples,
)
from saki.evaluation.samples import samples_file
from saki.files import write_text

SUMMARY = "Grade the stored samples of an evaluation again, without sampling; figures and verdicts are written anew."
EXAMPLE = "saki eval regrade runs/eval"


def parser() -> CommandParser:
    """The command's options; the folder comes before them."""
    return CommandParser([CommonArguments, RegradeArguments], "saki eval regrade FOLDER", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    words = list(argv)
    folder = Path(words.pop(0)) if words and not words[0].startswith("-") else None
    common, args = parser().parse(words)
    if folder is None:
        raise UsageError(f"saki eval regrade needs the folder of an evaluation, for example: {EXAMPLE}")
    label, names, stored = _evaluation(folder)
    specs = {
        choice.name: choice
        for choice in benchmark_choices(str(stored.get("benchmarks", "")))
        if isinstance(choice, BenchmarkSpec)
    }
    with ExitStack() as stack:
        pool = None
        if any(spec.grade is None for name, spec in specs.items() if name in names):
            pool = stack.enter_context(GradingPool(args.grading_workers, args.grading_seconds))
        before = [read_samples(folder / "samples", name) for name in names]
        after = [regrade_samples(each, _benchmark(each, specs, pool)) for each in before]
    target = Path(common.out) if common.out else folder
    changed = 0
    for old, new in zip(before, after, strict=True):
        changed += sum(one != other for one, other in zip(old.verdicts, new.verdicts, strict=True))
        write_samples(samples_file(target / "samples", new.benchmark), new)
    seconds = [each.seconds for each in after if each.seconds is not None]
    result = EvaluationResult.from_sets(
        [each.summarise() for each in after], sum(seconds) if len(seconds) == len(after) else None
    )
    write_text(target / "evaluation.json", json.dumps({label: result.to_json()}, indent=2))
    write_text(target / "evaluation.md", markdown_table({label: result}) + "\n")
    print(text_table({label: result}))
    print(f"{changed} of {sum(len(each.verdicts) for each in after)} verdicts changed; written to {target}")
    if common.json:
        print_json({**result.to_json(), "changed": changed})
    return 0


def _evaluation(folder: Path) -> tuple[str, list[str], dict[str, Any]]:
    """Label of the model, names of the benchmarks, and the options of a finished evaluation."""
    path = folder / "evaluation.json"
    if not path.is_file():
        raise UsageError(
            f"{folder} holds no finished evaluation (no evaluation.json); give the --out folder of saki eval, and run "
            "that command again if it was killed"
        )
    label, values = next(iter(json.loads(path.read_text()).items()))
    return label, list(values["benchmarks"]), read_yaml(folder / "config.resolved.yaml")


def _benchmark(samples: SampleSet, specs: dict[str, BenchmarkSpec], pool: GradingPool | None) -> Benchmark:
    """The stored prompts and answers, with the grader that their benchmark has now."""
    if samples.benchmark in specs:
        grade, also = graders(specs[samples.benchmark], pool)
    else:
        grade, also = grade_each(lab.grade), ()
    return Benchmark(samples.benchmark, samples.prompts, samples.answers, grade, "stored samples", also=also)
