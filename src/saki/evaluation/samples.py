"""The samples of one benchmark: what was drawn, how it was graded, and the parquet file that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saki.evaluation.benchmarks.base import Benchmark
from saki.evaluation.metrics import SetResult
from saki.files import whole_file

SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("problem_index", pa.int32()),
        ("sample_index", pa.int32()),
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("answer", pa.string()),
        ("correct", pa.bool_()),
        ("finish_reason", pa.string()),
        ("num_tokens", pa.int32()),
    ]
)
"""Columns of a file of samples; ``correct`` is null where grading ran out of time."""


@dataclass(frozen=True)
class SampleSet:
    """All samples of one benchmark, P problems x N samples, problem-major.

    Attributes:
        benchmark: Name of the benchmark.
        num_samples: Samples a problem, N.
        prompts: P prompts.
        answers: P right answers.
        completions: P * N decoded completions, without the stop token.
        finish_reasons: P * N reasons, out of :data:`saki.types.FINISH_REASONS`.
        num_tokens: P * N token counts, the stop token included.
        verdicts: P * N: right, wrong, or None where grading ran out of time.
    """

    benchmark: str
    num_samples: int
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    completions: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    num_tokens: tuple[int, ...]
    verdicts: tuple[bool | None, ...]

    def summarise(self, k: int | None = None) -> SetResult:
        """Mean@k, Pass@k and the rest; samples that ended in NaN or had no verdict in time are wrong, and counted.

        Args:
            k: The k of Pass@k; N if None.
        """
        right = np.array([verdict is True for verdict in self.verdicts])
        return SetResult.from_correct(
            self.benchmark,
            right.reshape(len(self.prompts), self.num_samples),
            k=k,
            truncated=self.finish_reasons.count("length") / len(self.finish_reasons),
            timeouts=sum(verdict is None for verdict in self.verdicts),
            failed=self.finish_reasons.count("nan"),
            num_tokens=sum(self.num_tokens),
        )


def grade_completions(benchmark: Benchmark, completions: Sequence[str], num_samples: int) -> tuple[bool | None, ...]:
    """Grade all samples of a benchmark in one call of its grader.

    Args:
        benchmark: The benchmark, P problems.
        completions: P * N completions, problem-major.
        num_samples: N.

    Raises:
        ValueError: If the grader returns another number of verdicts.
    """
    answers = [answer for answer in benchmark.answers for _ in range(num_samples)]
    verdicts = tuple(benchmark.grade(completions, answers))
    if len(verdicts) != len(completions):
        raise ValueError(
            f"the grader of {benchmark.name} gave {len(verdicts)} verdicts for {len(completions)} completions; "
            "expected one each, None where time ran out"
        )
    return tuple(None if verdict is None else bool(verdict) for verdict in verdicts)


def samples_file(folder: Path, benchmark: str) -> Path:
    """Path of a benchmark's samples in a folder."""
    return folder / f"{benchmark}.parquet"


def write_samples(folder: Path, samples: SampleSet) -> Path:
    """Write the samples as ``<folder>/<benchmark>.parquet``, whole or not at all.

    Args:
        folder: Folder, made where it is missing.
        samples: The samples.

    Returns:
        The path written.
    """
    problems, per_problem = len(samples.prompts), samples.num_samples
    table = pa.table(
        {
            "benchmark": [samples.benchmark] * (problems * per_problem),
            "problem_index": np.repeat(np.arange(problems), per_problem),
            "sample_index": np.tile(np.arange(per_problem), problems),
            "prompt": [prompt for prompt in samples.prompts for _ in range(per_problem)],
            "completion": list(samples.completions),
            "answer": [answer for answer in samples.answers for _ in range(per_problem)],
            "correct": list(samples.verdicts),
            "finish_reason": list(samples.finish_reasons),
            "num_tokens": list(samples.num_tokens),
        },
        schema=SCHEMA,
    )
    path = samples_file(folder, samples.benchmark)
    with whole_file(path) as unfinished:
        pq.write_table(table, unfinished)
    return path


def read_samples(folder: Path, benchmark: str) -> SampleSet:
    """Read what :func:`write_samples` wrote.

    Args:
        folder: Folder of samples.
        benchmark: Name of the benchmark.

    Raises:
        ValueError: If there is no such file, or if it does not hold N samples of every problem in order.
    """
    path = samples_file(folder, benchmark)
    if not path.is_file():
        raise ValueError(f"no samples of {benchmark} at {path}; expected a file that an evaluation wrote there")
    columns = pq.read_table(path, schema=SCHEMA).to_pydict()
    num_samples = max(columns["sample_index"], default=-1) + 1
    problems = max(columns["problem_index"], default=-1) + 1
    grid = [(problem, sample) for problem in range(problems) for sample in range(num_samples)]
    if not grid or list(zip(columns["problem_index"], columns["sample_index"], strict=True)) != grid:
        raise ValueError(
            f"{path} does not hold the samples of every problem in order ({len(columns['problem_index'])} rows, "
            f"{problems} problems, {num_samples} samples each); evaluate again"
        )
    return SampleSet(
        benchmark=benchmark,
        num_samples=num_samples,
        prompts=tuple(columns["prompt"][::num_samples]),
        answers=tuple(columns["answer"][::num_samples]),
        completions=tuple(columns["completion"]),
        finish_reasons=tuple(columns["finish_reason"]),
        num_tokens=tuple(columns["num_tokens"]),
        verdicts=tuple(columns["correct"]),
    )


def regrade_samples(samples: SampleSet, benchmark: Benchmark) -> SampleSet:
    """Grade stored samples anew, with the answers and the grader that the benchmark has now.

    Args:
        samples: Stored samples.
        benchmark: The benchmark they belong to.

    Raises:
        ValueError: If the benchmark's prompts are not those that were sampled.
    """
    if samples.prompts != benchmark.prompts:
        raise ValueError(
            f"the stored samples of {samples.benchmark} answer other prompts than benchmark {benchmark.name} has "
            f"({len(samples.prompts)} and {len(benchmark)} prompts); evaluate again"
        )
    verdicts = grade_completions(benchmark, samples.completions, samples.num_samples)
    return replace(samples, answers=benchmark.answers, verdicts=verdicts)
