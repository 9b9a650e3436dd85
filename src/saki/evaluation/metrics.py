"""Mean@k, Pass@k and their bootstrap intervals, from a matrix of right and wrong samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A confidence interval, in the unit of what it surrounds.

    Attributes:
        low: Lower end.
        high: Upper end.
    """

    low: float
    high: float

    def to_json(self) -> list[float]:
        """``[low, high]``."""
        return [self.low, self.high]


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval.

    Attributes:
        value: The estimate.
        interval: Its interval.
    """

    value: float
    interval: Interval


def mean_at_k(correct: ArrayLike) -> NDArray[np.float64]:
    """Share of right samples of each problem; its mean over problems is Mean@k.

    Args:
        correct: [P, N] bool, True where sample n of problem p is right.

    Returns:
        [P] float64 in [0, 1].

    Raises:
        ValueError: If the matrix is not two-dimensional, not boolean, or empty.
    """
    means: NDArray[np.float64] = _correct_matrix(correct).mean(axis=1)
    return means


def pass_at_k(correct: ArrayLike, k: int | None = None) -> NDArray[np.float64]:
    """Probability that k samples of a problem hold a right one; its mean over problems is Pass@k.

    With c right ones among N samples this is the unbiased ``1 - C(N - c, k) / C(N, k)``, which for k = N
    is 1 where any sample is right and else 0.

    Args:
        correct: [P, N] bool, True where sample n of problem p is right.
        k: Number of samples that may be tried, in [1, N]; N if None.

    Returns:
        [P] float64 in [0, 1].

    Raises:
        ValueError: If the matrix is not two-dimensional, not boolean, or empty, or if k is out of range.
    """
    matrix = _correct_matrix(correct)
    num_samples = matrix.shape[1]
    k = num_samples if k is None else k
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k must lie in [1, {num_samples}], the number of samples a problem, got {k}; draw more samples"
        )
    ways = math.comb(num_samples, k)
    by_count = np.array([1.0 - math.comb(num_samples - c, k) / ways for c in range(num_samples + 1)])
    passes: NDArray[np.float64] = by_count[matrix.sum(axis=1)]
    return passes


def bootstrap_interval(
    values: ArrayLike,
    num_resamples: int = NUM_RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int | np.random.Generator = 0,
) -> Interval:
    """Percentile bootstrap interval of a mean over problems.

    Whole problems are resampled, since the samples of one problem are not independent of each other. The
    interval covers the choice of problems and the draw of samples, not the run-to-run noise of training. Where
    all problems have the same value (all right, say) the bootstrap sees no spread and both ends equal it.
    The interval of a paired difference is that of ``after - before``, problem by problem.

    Args:
        values: [P] one value a problem, such as :func:`mean_at_k` gives.
        num_resamples: Number of resamples.
        confidence: Coverage in (0, 1).
        seed: Seed, or a generator, which then advances.

    Returns:
        The interval of the mean, in the unit of ``values``.

    Raises:
        ValueError: If there are no values, one is not finite, or an argument is out of range.
    """
    return _percentiles(_bootstrap_means(values, num_resamples, np.random.default_rng(seed)), confidence)


def macro_average(
    values_by_set: Sequence[ArrayLike],
    num_resamples: int = NUM_RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int | np.random.Generator = 0,
) -> Estimate:
    """Unweighted mean of the sets' means, with an interval that resamples problems within each set.

    The sets themselves are taken as fixed: the interval says nothing of other sets.

    Args:
        values_by_set: One [P_s] array a set, one value a problem.
        num_resamples: Number of resamples.
        confidence: Coverage in (0, 1).
        seed: Seed, or a generator, which then advances.

    Returns:
        The average and its interval, in the unit of the values.

    Raises:
        ValueError: If there is no set, a set is empty, a value is not finite, or an argument is out of range.
    """
    if not values_by_set:
        raise ValueError("expected at least one set to average, got none")
    rng = np.random.default_rng(seed)
    means = np.stack([_bootstrap_means(values, num_resamples, rng) for values in values_by_set])
    value = float(np.mean([np.asarray(values, dtype=np.float64).mean() for values in values_by_set]))
    return Estimate(value, _percentiles(means.mean(axis=0), confidence))


@dataclass(frozen=True)
class SetResult:
    """The result of one benchmark. All shares lie in [0, 1].

    Attributes:
        name: Name of the benchmark.
        k: The k of Mean@k and Pass@k.
        mean_at_k: Mean over problems of the share of right samples.
        pass_at_k: Mean over problems of the probability that k samples hold a right one.
        num_problems: Number of problems.
        num_samples: Samples a problem.
        truncated: Share of samples that met the length cap.
        timeouts: Number of samples whose grading ran out of time; they count as wrong and are named here.
        unparsed: Number of samples without an answer that could be read; they count as wrong and are named here.
        failed: Number of samples that ended since the model gave NaN; they count as wrong and are named here.
        num_tokens: Completion tokens in all, end tokens included.
        correct: [P, N] bool, the matrix behind the numbers; not part of the JSON.
        also: Mean@k and Pass@k under further ways to grade the same samples, by name.
    """

    name: str
    k: int
    mean_at_k: Estimate
    pass_at_k: Estimate
    num_problems: int
    num_samples: int
    truncated: float
    timeouts: int
    failed: int
    num_tokens: int
    correct: NDArray[np.bool_] = field(repr=False, compare=False)
    unparsed: int = 0
    also: Mapping[str, tuple[Estimate, Estimate]] = field(default_factory=dict)

    @classmethod
    def from_correct(
        cls,
        name: str,
        correct: ArrayLike,
        *,
        truncated: float,
        timeouts: int,
        num_tokens: int,
        failed: int = 0,
        unparsed: int = 0,
        also: Mapping[str, ArrayLike] | None = None,
        k: int | None = None,
    ) -> SetResult:
        """Summarise one benchmark; the bootstrap has a fixed seed, so equal matrices give equal intervals.

        Args:
            name: Name of the benchmark.
            correct: [P, N] bool.
            truncated: Share of samples that met the length cap, in [0, 1].
            timeouts: Number of samples whose grading ran out of time.
            num_tokens: Completion tokens in all.
            failed: Number of samples that ended in NaN.
            unparsed: Number of samples without an answer that could be read.
            also: [P, N] bool under further ways to grade the same samples, by name.
            k: The k of Pass@k; N if None.

        Raises:
            ValueError: If the matrix or k is not usable.
        """
        matrix = _correct_matrix(correct)
        mean, passed = _estimates(matrix, k)
        return cls(
            name=name,
            k=matrix.shape[1] if k is None else k,
            mean_at_k=mean,
            pass_at_k=passed,
            num_problems=matrix.shape[0],
            num_samples=matrix.shape[1],
            truncated=truncated,
            timeouts=timeouts,
            failed=failed,
            num_tokens=num_tokens,
            correct=matrix,
            unparsed=unparsed,
            also={label: _estimates(_correct_matrix(other), k) for label, other in (also or {}).items()},
        )

    def to_json(self) -> dict[str, Any]:
        """The entry of this benchmark in :meth:`EvaluationResult.to_json`."""
        return {
            **_estimates_to_json(self.mean_at_k, self.pass_at_k),
            "k": self.k,
            "num_problems": self.num_problems,
            "num_samples": self.num_samples,
            "truncated": self.truncated,
            "timeouts": self.timeouts,
            "unparsed": self.unparsed,
            "failed": self.failed,
            "num_tokens": self.num_tokens,
            **{name: _estimates_to_json(mean, passed) for name, (mean, passed) in self.also.items()},
        }


@dataclass(frozen=True)
class EvaluationResult:
    """The results of one model on some benchmarks.

    Attributes:
        sets: One result a benchmark, in the order asked for.
        mean_at_k: Macro average of Mean@k over the benchmarks.
        pass_at_k: Macro average of Pass@k over the benchmarks.
        seconds: Wall seconds of the rollouts, or None where they are not known (after re-grading).
    """

    sets: tuple[SetResult, ...]
    mean_at_k: Estimate
    pass_at_k: Estimate
    seconds: float | None = None

    @classmethod
    def from_sets(cls, sets: Sequence[SetResult], seconds: float | None = None) -> EvaluationResult:
        """Average over benchmarks.

        Raises:
            ValueError: If there is no set, if two share a name, or if their k differ.
        """
        names, ks = [result.name for result in sets], {result.k for result in sets}
        if len(set(names)) < len(names):
            raise ValueError(f"benchmark names must differ, got {names}")
        if len(ks) > 1:
            raise ValueError(f"benchmarks must share one k, got {sorted(ks)}; evaluate them with the same k")
        return cls(
            sets=tuple(sets),
            mean_at_k=macro_average([mean_at_k(result.correct) for result in sets]),
            pass_at_k=macro_average([pass_at_k(result.correct, result.k) for result in sets]),
            seconds=seconds,
        )

    @property
    def k(self) -> int:
        """The k of Mean@k and Pass@k."""
        return self.sets[0].k

    @property
    def tokens_per_second(self) -> float | None:
        """Completion tokens per wall second of rollout, or None where the time is not known."""
        if not self.seconds:
            return None
        return sum(result.num_tokens for result in self.sets) / self.seconds

    def to_json(self) -> dict[str, Any]:
        """What ``evaluation.json`` holds for one model; every value is finite or None."""
        return {
            "benchmarks": {result.name: result.to_json() for result in self.sets},
            "average": {
                **_estimates_to_json(self.mean_at_k, self.pass_at_k),
                "k": self.k,
                "num_benchmarks": len(self.sets),
            },
            "seconds": self.seconds,
            "tokens_per_s": self.tokens_per_second,
        }


def _estimates(correct: NDArray[np.bool_], k: int | None) -> tuple[Estimate, Estimate]:
    """Mean@k and Pass@k of one benchmark."""
    means, passes = mean_at_k(correct), pass_at_k(correct, k)
    return (
        Estimate(float(means.mean()), bootstrap_interval(means)),
        Estimate(float(passes.mean()), bootstrap_interval(passes)),
    )


def _estimates_to_json(mean: Estimate, passed: Estimate) -> dict[str, Any]:
    return {
        "mean_at_k": mean.value,
        "pass_at_k": passed.value,
        "ci95": {"mean_at_k": mean.interval.to_json(), "pass_at_k": passed.interval.to_json()},
    }


def _correct_matrix(correct: ArrayLike) -> NDArray[np.bool_]:
    matrix = np.asarray(correct)
    if matrix.ndim != 2 or matrix.dtype != np.bool_ or matrix.size == 0:
        raise ValueError(
            f"correct must be a boolean [num_problems, num_samples] matrix with at least one entry, "
            f"got shape {matrix.shape} of {matrix.dtype}"
        )
    return matrix


def _bootstrap_means(values: ArrayLike, num_resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """[R] means of resampled problems."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"values must be a non-empty vector of finite numbers, got shape {array.shape}: {array[:5]}")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}")
    drawn = rng.integers(0, array.size, size=(num_resamples, array.size), dtype=np.int32)
    means: NDArray[np.float64] = array[drawn].mean(axis=1)
    return means


def _percentiles(means: NDArray[np.float64], confidence: float) -> Interval:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Interval(float(low), float(high))
