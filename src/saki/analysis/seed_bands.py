"""A metric over several seeds of one arm: its mean at each step with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saki.analysis.figures import Rows, running_mean
from saki.analysis.metrics_file import series
from saki.analysis.study_statistics import CONFIDENCE, t_quantile


@dataclass(frozen=True)
class Band:
    """Mean over seeds with its 95% t interval, by step.

    Attributes:
        steps: [n] optimizer steps at which any seed has a finite value.
        mean: [n] mean over the seeds that have one.
        low: [n] lower end, NaN where fewer than two seeds have a value.
        high: [n] upper end.
        counts: [n] seeds that have a value.
    """

    steps: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    counts: NDArray[np.int64]


def seed_band(runs: Sequence[Rows], name: str, window: int = 1) -> Band:
    """The band of a metric.

    Args:
        runs: Rows of each seed, as of :func:`saki.analysis.metrics_file.merge_steps`.
        name: Name of the metric. A value that is no finite number does not count.
        window: Each seed is smoothed first by a centred mean over so many values.
    """
    found: dict[float, list[float]] = {}
    for rows in runs:
        steps, values = series(rows, name)
        smoothed = running_mean(values, min(window, len(values))) if window > 1 and len(values) else values
        for step, value in zip(steps, smoothed, strict=True):
            if math.isfinite(value):
                found.setdefault(float(step), []).append(float(value))
    order = sorted(found)
    means = np.array([np.mean(found[step]) for step in order], dtype=np.float64)
    halves = np.array([_half(found[step]) for step in order], dtype=np.float64)
    counts = np.array([len(found[step]) for step in order], dtype=np.int64)
    return Band(np.array(order, dtype=np.float64), means, means - halves, means + halves, counts)


def _half(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    return t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
