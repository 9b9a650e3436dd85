"""Statistics of a study: intervals over seeds and problems, paired differences, and how many seeds a point needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from saki.analysis.study_results import Sample

Matrices = Mapping[str, NDArray[np.float64]]
"""By set, one value a seed and problem: [S, P], the same seeds in every set."""

CONFIDENCE = 0.95
POWER = 0.8


@dataclass(frozen=True)
class Spread:
    """A value with its interval over seeds and problems.

    Attributes:
        value: Mean over seeds and problems; of several sets, their unweighted mean.
        low: Lower end of the 95% interval.
        high: Upper end.
        num_seeds: S.
        seed_sd: Standard deviation between seeds, or NaN with one seed.
    """

    value: float
    low: float
    high: float
    num_seeds: int
    seed_sd: float


@dataclass(frozen=True)
class Difference:
    """A paired difference of two arms, in the unit of the values.

    Attributes:
        spread: Difference and its interval over seeds and problems.
        seeds_low: Lower end of the 95% t interval over seeds, problems as they are; NaN with one seed.
        seeds_high: Upper end.
    """

    spread: Spread
    seeds_low: float
    seeds_high: float

    @property
    def num_seeds_for_a_point(self) -> int | None:
        """Seeds that show a difference of 0.01 at the spread seen, or None with one seed."""
        sd = self.spread.seed_sd
        return None if math.isnan(sd) else seeds_needed(sd, 0.01)


def spread(values: Matrices) -> Spread:
    """Mean and interval of one arm, one set or the macro average of several.

    Seeds and problems are crossed random effects: a score is mean + run + problem + noise of this run on this problem.
    The half width is sqrt((t_{S-1} s / sqrt(S))^2 + z^2 V), with s the standard deviation between the seeds' averages,
    which holds runs and noise, and V the variance that the choice of problems adds, the noise taken out of it. With one
    seed V holds the noise as well, and the interval says nothing of run-to-run noise.

    Args:
        values: By set, [S, P].

    Raises:
        ValueError: If there is no set, or numbers of seeds differ between sets.
    """
    if not values:
        raise ValueError("expected at least one set, got none")
    num_seeds = {matrix.shape[0] for matrix in values.values()}
    if len(num_seeds) != 1 or 0 in num_seeds:
        raise ValueError(f"every set must have the same seeds, at least one, got {sorted(num_seeds)}")
    count = num_seeds.pop()
    by_seed = per_seed(values)
    mean = float(by_seed.mean())
    sd = float(by_seed.std(ddof=1)) if count > 1 else math.nan
    of_seeds = _half_width_of_seeds(sd, count) if count > 1 else 0.0
    of_problems = sum(_variance_of_problems(matrix) for matrix in values.values()) / len(values) ** 2
    half = math.hypot(of_seeds, NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(of_problems))
    return Spread(value=mean, low=mean - half, high=mean + half, num_seeds=count, seed_sd=sd)


def share_spread(values: Matrices) -> Spread:
    """As :func:`spread` for shares in [0, 1], which the interval does not leave."""
    found = spread(values)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def _half_width_of_seeds(sd: float, count: int) -> float:
    return t_quantile((1 + CONFIDENCE) / 2, count - 1) * sd / math.sqrt(count)


def _variance_of_problems(matrix: NDArray[np.float64]) -> float:
    """Variance that the choice of P problems adds to the mean of [S, P], the noise of single runs taken out."""
    seeds, problems = matrix.shape
    if problems < 2:
        return 0.0
    by_problem = matrix.mean(axis=0)
    variance = float(by_problem.var(ddof=1))
    if seeds > 1:
        noise = matrix - matrix.mean(axis=1, keepdims=True) - by_problem + matrix.mean()
        variance -= float((noise**2).sum()) / ((seeds - 1) * (problems - 1)) / seeds
    return max(variance, 0.0) / problems


def per_seed(values: Matrices) -> NDArray[np.float64]:
    """[S] macro average of each seed."""
    means: NDArray[np.float64] = np.mean([matrix.mean(axis=1) for matrix in values.values()], axis=0)
    return means


def paired(a: Sample, b: Sample, of: str = "mean") -> Difference | None:
    """a - b on the seeds that both have, seed by seed and problem by problem; None without a common seed.

    Args:
        a: An arm.
        b: Another, on the same sets and problems.
        of: ``"mean"`` or ``"passed"``.
    """
    common = [each for each in a.seeds if each in b.seeds]
    if not common:
        return None
    left, right = getattr(a.restrict(common), of), getattr(b.restrict(common), of)
    result = spread({name: left[name] - right[name] for name in left})
    if len(common) == 1:
        return Difference(result, math.nan, math.nan)
    half = _half_width_of_seeds(result.seed_sd, len(common))
    return Difference(result, result.value - half, result.value + half)


def seeds_needed(sd: float, difference: float, power: float = POWER) -> int:
    """Seeds at which a two-sided paired t test at 5% finds a difference with the given power.

    n = (z_a + z_b)^2 sd^2 / difference^2 + z_a^2 / 2, Guenther's small-sample form.

    Args:
        sd: Standard deviation of the paired difference between seeds.
        difference: To be found, in the same unit.
        power: Probability of finding it.

    Raises:
        ValueError: If a value is out of range.
    """
    if not (sd >= 0 and difference > 0 and 0 < power < 1):
        raise ValueError(f"expected sd >= 0, difference > 0 and power in (0, 1), got {sd}, {difference}, {power}")
    normal = NormalDist()
    z_a, z_b = normal.inv_cdf((1 + CONFIDENCE) / 2), normal.inv_cdf(power)
    return max(2, math.ceil((z_a + z_b) ** 2 * sd**2 / difference**2 + z_a**2 / 2))


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t law: exact for 1 and 2 degrees, else Hill's expansion (within 0.5%).

    Args:
        probability: In [0.5, 1).
        degrees: Degrees of freedom, at least 1.

    Raises:
        ValueError: If a value is out of range.
    """
    if degrees < 1 or not 0.5 <= probability < 1:
        raise ValueError(f"expected degrees >= 1 and probability in [0.5, 1), got {degrees} and {probability}")
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        x = 2 * probability - 1
        return x * math.sqrt(2 / (1 - x * x))
    z = NormalDist().inv_cdf(probability)
    n = float(degrees)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
