"""The samples of one benchmark: what was drawn, how it was graded, and the parquet file that keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from saki.evaluation.benchmarks.base import Benchmark, GradeFunction
from saki.evaluation.grading import Verdict
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
        ("verdict", pa.string()),
    ]
)
"""Columns of a file of samples; ``correct`` is null where grading ran out of time.

A column ``verdict.<name>`` more stands for each further way to grade.
"""

_SECONDS = b"saki.seconds"
_FROM_CORRECT: dict[Any, Verdict] = {True: "correct", False: "incorrect", None: "timeout"}
_TO_CORRECT: dict[str, bool | None] = {"correct": True, "incorrect": False, "unparsed": False, "timeout": None}


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
        verdicts: P * N verdicts.
        also: P * N verdicts under further ways to grade, by name.
        seconds: Wall seconds that the samples took, or None where that is not known.
    """

    benchmark: str
    num_samples: int
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    completions: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    num_tokens: tuple[int, ...]
    verdicts: tuple[Verdict, ...]
    also: Mapping[str, tuple[Verdict, ...]] = field(default_factory=dict)
    seconds: float | None = None

    def summarise(self, k: int | None = None) -> SetResult:
        """Mean@k, Pass@k and the rest; samples that ended in NaN or had no verdict in time are wrong, and counted.

        Args:
            k: The k of Pass@k; N if None.
        """
        return SetResult.from_correct(
            self.benchmark,
            self._right(self.verdicts),
            k=k,
            truncated=self.finish_reasons.count("length") / len(self.finish_reasons),
            timeouts=self.verdicts.count("timeout"),
            unparsed=self.verdicts.count("unparsed"),
            also={name: self._right(verdicts) for name, verdicts in self.also.items()},
            failed=self.finish_reasons.count("nan"),
            num_tokens=sum(self.num_tokens),
        )

    def _right(self, verdicts: Sequence[Verdict]) -> Any:
        right = np.array([verdict == "correct" for verdict in verdicts])
        return right.reshape(len(self.prompts), self.num_samples)


def join_samples(parts: Sequence[SampleSet]) -> SampleSet:
    """One set of the samples of several, problems in the order of the parts.

    Args:
        parts: Sets of one benchmark, with equally many samples a problem; at least one.
    """
    first = parts[0]
    assert all((part.benchmark, part.num_samples) == (first.benchmark, first.num_samples) for part in parts)

    def joined(name: str) -> tuple[Any, ...]:
        return tuple(value for part in parts for value in getattr(part, name))

    seconds = [part.seconds for part in parts if part.seconds is not None]
    return SampleSet(
        benchmark=first.benchmark,
        num_samples=first.num_samples,
        prompts=joined("prompts"),
        answers=joined("answers"),
        completions=joined("completions"),
        finish_reasons=joined("finish_reasons"),
        num_tokens=joined("num_tokens"),
        verdicts=joined("verdicts"),
        also={name: tuple(verdict for part in parts for verdict in part.also[name]) for name in first.also},
        seconds=sum(seconds) if len(seconds) == len(parts) else None,
    )


def grade_completions(
    grade: GradeFunction, name: str, answers: Sequence[str], completions: Sequence[str], num_samples: int
) -> tuple[Verdict, ...]:
    """Grade samples in one call of a grader.

    Args:
        grade: The grader.
        name: Name of the benchmark, for the error.
        answers: P right answers.
        completions: P * N completions, problem-major.
        num_samples: N.

    Raises:
        ValueError: If the grader returns another number of verdicts, or something that is none.
    """
    verdicts = tuple(grade(completions, [answer for answer in answers for _ in range(num_samples)]))
    if len(verdicts) != len(completions):
        raise ValueError(
            f"the grader of {name} gave {len(verdicts)} verdicts for {len(completions)} completions; "
            "expected one each, None where time ran out"
        )
    for verdict in verdicts:
        if verdict not in _TO_CORRECT and verdict not in _FROM_CORRECT:
            raise ValueError(
                f"the grader of {name} gave {verdict!r}; expected True, False, None or one of {', '.join(_TO_CORRECT)}"
            )
    return tuple(verdict if isinstance(verdict, str) else _FROM_CORRECT[verdict] for verdict in verdicts)


def samples_file(folder: Path, benchmark: str) -> Path:
    """Path of a benchmark's samples in a folder."""
    return folder / f"{benchmark}.parquet"


def write_samples(path: Path, samples: SampleSet) -> Path:
    """Write samples as a parquet file, whole or not at all.

    Args:
        path: The file; see :func:`samples_file`.
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
            "correct": [_TO_CORRECT[verdict] for verdict in samples.verdicts],
            "finish_reason": list(samples.finish_reasons),
            "num_tokens": list(samples.num_tokens),
            "verdict": list(samples.verdicts),
        },
        schema=SCHEMA,
    )
    for name, verdicts in samples.also.items():
        table = table.append_column(f"verdict.{name}", pa.array(list(verdicts), pa.string()))
    if samples.seconds is not None:
        table = table.replace_schema_metadata({_SECONDS: repr(samples.seconds).encode()})
    with whole_file(path) as unfinished:
        pq.write_table(table, unfinished)
    return path


def read_samples(folder: Path, benchmark: str) -> SampleSet:
    """Read the samples of a benchmark from a folder.

    Args:
        folder: Folder of samples.
        benchmark: Name of the benchmark.

    Raises:
        ValueError: If there is no such file, if it holds samples of another benchmark, or if it does not hold N
            samples of every problem in order.
    """
    path = samples_file(folder, benchmark)
    if not path.is_file():
        raise ValueError(f"no samples of {benchmark} at {path}; expected a file that an evaluation wrote there")
    samples = read_samples_file(path)
    if samples.benchmark != benchmark:
        raise ValueError(
            f"{path} holds samples of {samples.benchmark}, expected those of {benchmark}; put back the file that was "
            "there, or delete it and evaluate again"
        )
    return samples


def read_samples_file(path: Path) -> SampleSet:
    """Read what :func:`write_samples` wrote.

    Args:
        path: The file.

    Raises:
        ValueError: If it cannot be read, or does not hold N samples of every problem in order.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"cannot read the samples in {path} ({str(error).splitlines()[0]}); delete that file and evaluate again"
        ) from error
    columns = table.to_pydict()
    needed = [name for name in SCHEMA.names if name != "verdict"]  # files of older versions have none
    if not set(needed) <= set(columns):
        raise ValueError(
            f"{path} holds the columns {sorted(columns)}, expected those of samples; delete that file and "
            "evaluate again"
        )
    num_samples = max(columns["sample_index"], default=-1) + 1
    problems = max(columns["problem_index"], default=-1) + 1
    grid = [(problem, sample) for problem in range(problems) for sample in range(num_samples)]
    if not grid or list(zip(columns["problem_index"], columns["sample_index"], strict=True)) != grid:
        raise ValueError(
            f"{path} does not hold the samples of every problem in order ({len(columns['problem_index'])} rows, "
            f"{problems} problems, {num_samples} samples each); delete that file and evaluate again"
        )
    seconds = (table.schema.metadata or {}).get(_SECONDS)
    return SampleSet(
        benchmark=columns["benchmark"][0],
        num_samples=num_samples,
        prompts=tuple(columns["prompt"][::num_samples]),
        answers=tuple(columns["answer"][::num_samples]),
        completions=tuple(columns["completion"]),
        finish_reasons=tuple(columns["finish_reason"]),
        num_tokens=tuple(columns["num_tokens"]),
        verdicts=tuple(columns.get("verdict") or [_FROM_CORRECT[value] for value in columns["correct"]]),
        also={
            name.removeprefix("verdict."): tuple(values)
            for name, values in columns.items()
            if name.startswith("verdict.")
        },
        seconds=None if seconds is None else float(seconds),
    )


def grade_samples(samples: SampleSet, benchmark: Benchmark) -> SampleSet:
    """Samples with verdicts of a benchmark's graders.

    Args:
        samples: Samples of some of the benchmark's problems; their own answers are graded against.
        benchmark: Whose graders to use.
    """

    def graded(grade: GradeFunction) -> tuple[Verdict, ...]:
        return grade_completions(grade, benchmark.name, samples.answers, samples.completions, samples.num_samples)

    also = {name: graded(grade) for name, grade in benchmark.also}
    return replace(samples, verdicts=graded(benchmark.grade), also=also)


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
    return grade_samples(replace(samples, answers=benchmark.answers), benchmark)
