"""What a study measured: right answers of every problem, run by run, in memory and as parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from saki.files import whole_file

RESULT = "result.json"
"""What a finished run leaves in its folder."""

SCHEMA = pa.schema(
    [
        ("student", pa.string()),
        ("label", pa.string()),
        ("method", pa.string()),
        ("seed", pa.int64()),
        ("step", pa.int64()),
        ("benchmark", pa.string()),
        ("num_problems", pa.int32()),
        ("num_samples", pa.int32()),
        ("mean_at_k", pa.float64()),
        ("pass_at_k", pa.float64()),
        ("num_right", pa.list_(pa.int16())),
        ("truncated", pa.float64()),
        ("train_cpu_seconds", pa.float64()),
        ("evaluation_cpu_seconds", pa.float64()),
        ("fingerprint", pa.string()),
    ]
)
"""Columns of ``results.parquet``, one row a run, step and set; ``num_right`` holds one count a problem."""


@dataclass(frozen=True)
class SetScore:
    """One run on one set.

    Attributes:
        student: Name of the student.
        label: What was done to it.
        method: Registered method; empty for an untrained model.
        seed: Run seed.
        step: Optimizer steps taken.
        benchmark: Name of the set.
        num_samples: Samples a problem, N.
        num_right: [P] right samples of each problem.
        truncated: Share of samples that met the length cap.
        train_cpu_seconds: CPU seconds of the run's training.
        evaluation_cpu_seconds: CPU seconds of the run's evaluations.
        fingerprint: Hash of the run's settings.
    """

    student: str
    label: str
    method: str
    seed: int
    step: int
    benchmark: str
    num_samples: int
    num_right: tuple[int, ...]
    truncated: float
    train_cpu_seconds: float
    evaluation_cpu_seconds: float
    fingerprint: str

    @property
    def mean_at_k(self) -> float:
        """Share of right samples."""
        return float(np.mean(self.num_right)) / self.num_samples

    @property
    def pass_at_k(self) -> float:
        """Share of problems with a right sample among all N."""
        return float(np.mean(np.asarray(self.num_right) > 0))


def read_run(path: Path) -> dict[str, Any]:
    """The values of a run's :data:`RESULT`, or of another JSON file of its folder.

    Raises:
        ValueError: If the file is damaged.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise _no_result(path, error) from error
    if not isinstance(values, dict):
        raise _no_result(path, values)
    return values


def run_scores(path: Path, student: str, label: str, seed: int) -> list[SetScore]:
    """The scores of one finished run.

    Args:
        path: Its :data:`RESULT`.
        student: Name of the student.
        label: What was done to it.
        seed: Run seed.

    Raises:
        ValueError: If the file is damaged.
    """
    stored = read_run(path)
    try:
        return [
            SetScore(
                student=student,
                label=label,
                method=stored["run"]["method"],
                seed=seed,
                step=int(step),
                benchmark=name,
                num_samples=values["num_samples"],
                num_right=tuple(values["num_right"]),
                truncated=values["truncated"],
                train_cpu_seconds=stored["train_cpu_seconds"],
                evaluation_cpu_seconds=stored["evaluation_cpu_seconds"],
                fingerprint=stored["fingerprint"],
            )
            for step, sets in stored["steps"].items()
            for name, values in sets.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_result(path, error) from error


def _no_result(path: Path, found: object) -> ValueError:
    return ValueError(f"{path} is not the result of a run ({found!r}); remove it, and run the study again")


def write_results(path: Path, scores: Sequence[SetScore]) -> None:
    """Write all scores, complete or not at all."""
    columns = {name: [getattr(score, name, None) for score in scores] for name in SCHEMA.names}
    columns["num_problems"] = [len(score.num_right) for score in scores]
    columns["num_right"] = [list(score.num_right) for score in scores]
    with whole_file(path) as unfinished:
        pq.write_table(pa.Table.from_pydict(columns, schema=SCHEMA), unfinished)


def read_results(path: Path, remedy: str = "saki study with --tables_only writes it again") -> list[SetScore]:
    """Read the scores of a study back.

    Args:
        path: ``results.parquet``.
        remedy: What the user can do about a file that cannot be read.

    Raises:
        ValueError: If the file is missing, empty, damaged or holds other columns. A file without fingerprints, as
            older ones are, is read.
    """
    try:
        if not path.is_file():
            raise ValueError(f"there is no results file {path}")
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty; {remedy}")
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is not a readable parquet file ({reason}); {remedy}") from error
    if "fingerprint" not in table.schema.names:
        table = table.append_column("fingerprint", pa.array([""] * len(table), pa.string()))
    if set(table.schema.names) != set(SCHEMA.names):
        absent = [name for name in SCHEMA.names if name not in table.schema.names]
        other = [name for name in table.schema.names if name not in SCHEMA.names]
        raise ValueError(
            f"{path} is of another version: it lacks the columns {absent} and has {other} instead; {remedy}"
        )
    table = table.select(SCHEMA.names)
    if table.schema != SCHEMA or any(column.null_count or _nulls_inside(column) for column in table.columns):
        raise ValueError(f"{path} holds columns of other types, or with gaps; {remedy}")
    derived = ("num_problems", "mean_at_k", "pass_at_k")
    rows = [{name: value for name, value in row.items() if name not in derived} for row in table.to_pylist()]
    return [SetScore(**{**row, "num_right": tuple(row["num_right"])}) for row in rows]


def _nulls_inside(column: pa.ChunkedArray) -> bool:
    return pa.types.is_list(column.type) and any(chunk.flatten().null_count for chunk in column.chunks)


def by_run(scores: Iterable[SetScore]) -> dict[tuple[str, str, int], list[SetScore]]:
    """The scores of each run, by student, label and seed."""
    runs: dict[tuple[str, str, int], list[SetScore]] = {}
    for score in scores:
        runs.setdefault((score.student, score.label, score.seed), []).append(score)
    return runs


@dataclass(frozen=True)
class Sample:
    """One arm on the sets of a study: S seeds.

    Attributes:
        seeds: The S seeds.
        mean: By set, [S, P] share of right samples.
        passed: By set, [S, P] 1 where one of a problem's samples is right, else 0.
    """

    seeds: tuple[int, ...]
    mean: dict[str, NDArray[np.float64]]
    passed: dict[str, NDArray[np.float64]]

    def restrict(self, seeds: Sequence[int]) -> Sample:
        """The same arm on some of its seeds, in the given order."""
        index = [self.seeds.index(seed) for seed in seeds]
        return Sample(
            tuple(seeds),
            {name: values[index] for name, values in self.mean.items()},
            {name: values[index] for name, values in self.passed.items()},
        )


def gather(scores: Iterable[SetScore], student: str, label: str, step: int | None) -> Sample | None:
    """The seeds of one arm that have every set, or None without any.

    Args:
        scores: All scores.
        student: Name of the student.
        label: Of the arm.
        step: Which evaluation; None for the last one of each run.
    """
    by_seed: dict[int, dict[int, dict[str, SetScore]]] = {}
    for score in scores:
        if score.student == student and score.label == label:
            by_seed.setdefault(score.seed, {}).setdefault(score.step, {})[score.benchmark] = score
    chosen = {
        seed: steps[max(steps) if step is None else step]
        for seed, steps in sorted(by_seed.items())
        if step is None or step in steps
    }
    if not chosen:
        return None
    names = list(next(iter(chosen.values())))
    seeds = [seed for seed, sets in chosen.items() if set(sets) == set(names)]

    def stacked(of: str) -> dict[str, NDArray[np.float64]]:
        rows = {}
        for name in names:
            counts = np.array([chosen[seed][name].num_right for seed in seeds], dtype=np.float64)
            rows[name] = counts / chosen[seeds[0]][name].num_samples if of == "mean" else (counts > 0).astype(float)
        return rows

    return Sample(tuple(seeds), stacked("mean"), stacked("passed"))
