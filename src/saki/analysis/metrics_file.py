"""Reading ``metrics.jsonl``: one JSON object a line, each with a ``step``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MetricRows(list[dict[str, Any]]):
    """The rows of a metrics file: a list of dicts with a note on what could not be read.

    Attributes:
        note: One sentence on a truncated last line, or None.
    """

    def __init__(self, rows: Iterable[dict[str, Any]] = (), note: str | None = None) -> None:
        super().__init__(rows)
        self.note = note


def read_metrics(path: Path) -> MetricRows:
    """Read a metrics file, also one whose writer was killed in the middle of its last line.

    Args:
        path: The ``metrics.jsonl`` of a run.

    Returns:
        The rows in the order of the file. A last line that is not whole is left out and named in ``note``.

    Raises:
        ValueError: If the file is missing or holds no whole row, or if a line before the last is not a JSON
            object with an integer ``step``.
    """
    if not path.is_file():
        raise ValueError(f"no metrics at {path}; expected the metrics.jsonl of a run that has logged a step")
    lines = [(number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1) if line.strip()]
    rows: list[dict[str, Any]] = []
    note = None
    for number, line in lines:
        try:
            rows.append(_parse(line))
        except ValueError as error:
            if number != lines[-1][0]:
                raise ValueError(
                    f"{path} line {number} is not a JSON object with an integer step ({error}); remove the line"
                ) from error
            note = f"line {number}, the last one of {path.name}, is truncated and was left out"
    if not rows:
        raise ValueError(f"{path} is empty: it holds no whole row yet; wait for the run to log a step")
    return MetricRows(rows, note)


def merge_steps(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a step, in order of steps.

    Rows of one step are joined, the later value of a name winning. Where the step falls, a run was resumed
    from an earlier checkpoint: what was logged at that step or later before the resume is replaced.

    Args:
        rows: Rows in the order in which they were logged.

    Returns:
        Rows with rising ``step``.
    """
    merged: dict[int, dict[str, Any]] = {}
    last = None
    for row in rows:
        step = int(row["step"])
        if last is not None and step < last:
            merged = {known: values for known, values in merged.items() if known < step}
        merged.setdefault(step, {}).update(row)
        last = step
    return [merged[step] for step in sorted(merged)]


def series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values of one metric where it was logged.

    Args:
        rows: Rows as of :func:`merge_steps`.
        name: Name of the metric.

    Returns:
        ([n] steps, [n] values), both float64; a value that was logged but is no finite number is NaN. Both are
        empty where the metric was never logged.
    """
    found = [(row["step"], _number(row[name])) for row in rows if name in row]
    steps = np.array([step for step, _ in found], dtype=np.float64)
    return steps, np.array([value for _, value in found], dtype=np.float64)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return math.nan
    return float(value)


def _parse(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not an object")
    step = row.get("step")
    if isinstance(step, bool) or not isinstance(step, int):
        raise ValueError(f"step is {step!r}")
    return row
