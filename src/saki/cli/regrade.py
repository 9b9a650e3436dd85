"""``saki eval regrade FOLDER``: the stored samples of an evaluation, graded again without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from saki import lab
from saki.cli.console import fresh_folder, holdings, print_json
from saki.cli.eval_folder import RESULT, SAMPLES, finished_evaluation, read_records, write_records
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments, RegradeArguments
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
    label, names = finished_evaluation(folder)
    records, specs = read_records(folder)
    target = _target(folder, common.out)
    before = [read_samples(folder / SAMPLES, name) for name in names]
    for each in before:
        if args.k is not None and args.k > each.num_samples:
            raise UsageError(
                f"k is {args.k}, but {folder} has {each.num_samples} samples of each problem of {each.benchmark}; "
                "lower k, or leave it out"
            )
    with ExitStack() as stack:
        pool = None
        if any(spec.grade is None for name, spec in specs.items() if name in names):
            pool = stack.enter_context(GradingPool(args.grading_workers, args.grading_seconds))
        after = [regrade_samples(each, _benchmark(each, specs, pool)) for each in before]
    changed = 0
    for old, new in zip(before, after, strict=True):
        changed += sum(one != other for one, other in zip(old.verdicts, new.verdicts, strict=True))
        write_samples(samples_file(target / SAMPLES, new.benchmark), new)
    write_records(target, records)
    seconds = [each.seconds for each in after if each.seconds is not None]
    result = EvaluationResult.from_sets(
        [each.summarise(args.k) for each in after], sum(seconds) if len(seconds) == len(after) else None
    )
    write_text(target / RESULT, json.dumps({label: result.to_json()}, indent=2))
    write_text(target / "evaluation.md", markdown_table({label: result}) + "\n")
    print(text_table({label: result}))
    print(f"{changed} of {sum(len(each.verdicts) for each in after)} verdicts changed; written to {target}")
    if common.json:
        print_json({**result.to_json(), "changed": changed})
    return 0


def _target(folder: Path, out: str | None) -> Path:
    """Where to write, tried before anything is graded: the evaluation's own folder, or an empty one.

    Raises:
        ValueError: If it cannot be written, or if it is another folder and holds something, which would be replaced.
    """
    if out and Path(out).resolve() != folder.resolve():
        return fresh_folder(out, "saki eval regrade")
    holdings(folder)
    return folder


def _benchmark(samples: SampleSet, specs: dict[str, BenchmarkSpec], pool: GradingPool | None) -> Benchmark:
    """The stored prompts and answers, with the grader that their benchmark has now.

    Raises:
        UsageError: If the benchmark is none that the evaluation asked for, so that its grader is not known.
    """
    name = samples.benchmark
    if name in specs:
        grade, also = graders(specs[name], pool)
    elif name.removeprefix("development-") in lab.TEST_SETS:
        grade, also = grade_each(lab.grade), ()
    else:
        raise UsageError(
            f"the grader of benchmark {name} is not known: the evaluation names "
            f"{', '.join(specs) or 'sets of the lab'} only; give back its benchmarks the names they had"
        )
    return Benchmark(name, samples.prompts, samples.answers, grade, "stored samples", also=also)
