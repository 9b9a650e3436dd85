"""Two methods on one fixed-prefix probe: prompt-equal paired differences with clustered intervals (Appendix E)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saki.probe import Measurement, Probe

Array = NDArray[np.float64]

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95
NUM_QUARTILES = 4

ALL, CORRECTIONS, ACCEPTED, CONTRAST = "all", "corrections", "accepted", "Q4-Q1"
QUARTILES = ("Q1", "Q2", "Q3", "Q4")

_BLOCK = 1000
"""Resamples whose weights exist at once."""


@dataclass(frozen=True)
class Effect:
    """A paired difference of one figure on one group of positions.

    Attributes:
        step: Optimizer steps.
        metric: ``c1``, ``c_top``, ``c_rest`` (C_k - C_1), ``kl_teacher_student``, ``kl_student_teacher``, ``entropy``.
        group: ``all``, ``corrections``, ``accepted``, ``Q1`` to ``Q4`` by initial KL(T||S), or the contrast ``Q4-Q1``.
        value: Difference, a fraction or nats: mean over seeds and a prompt's positions, then over prompts.
        low: Lower end of the 95% interval over prompts; it says nothing of run-to-run noise.
        high: Upper end.
        num_prompts: Prompts with a position in the group.
        num_positions: Positions in the group.
        num_seeds: Pairs of runs.
        seed_sd: Standard deviation of the difference between pairs of runs, NaN with one pair.
    """

    step: int
    metric: str
    group: str
    value: float
    low: float
    high: float
    num_prompts: int
    num_positions: int
    num_seeds: int
    seed_sd: float


@dataclass(frozen=True)
class ProbeComparison:
    """Everything that two methods' measurements say.

    Attributes:
        measured: Name of the method.
        reference: Name of what it is compared with.
        top_k: Size of the teacher's top set.
        effects: By step, metric and group.
        num_resamples: Bootstrap resamples.
    """

    measured: str
    reference: str
    top_k: int
    effects: tuple[Effect, ...]
    num_resamples: int

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that both have, rising."""
        return tuple(sorted({effect.step for effect in self.effects}))

    def effect(self, step: int, metric: str, group: str = ALL) -> Effect:
        """One of them."""
        return next(e for e in self.effects if (e.step, e.metric, e.group) == (step, metric, group))


def compare_probe(
    probe: Probe,
    measured: Sequence[Measurement],
    reference: Sequence[Measurement],
    names: tuple[str, str],
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> ProbeComparison:
    """Differences measured - reference at every step that both have.

    Several measurements of one step are several seeds: the i-th of one side is paired with the i-th of the other, and
    differences are averaged over pairs first.

    Args:
        probe: The probe that both were measured on.
        measured: Measurements of a method.
        reference: Measurements of the other.
        names: How the two are called.
        num_resamples: Bootstrap resamples; the same ones serve every step, figure and group.
        seed: Seed of the resampling.

    Raises:
        ValueError: If a measurement is of another probe, has no step or another top set, if a step has unequal numbers
            of seeds, or if no step is common.
    """
    sides = [_by_step(probe, side) for side in (measured, reference)]
    sizes = {each.top_k for side in (measured, reference) for each in side}
    if len(sizes) > 1:
        raise ValueError(f"measurements have top sets of {sorted(sizes)} tokens; measure all with one --top_k")
    steps = sorted(set(sides[0]) & set(sides[1]))
    if not steps:
        raise ValueError(
            f"no step is common: {names[0]} has {sorted(sides[0])}, {names[1]} has {sorted(sides[1])}; measure both at "
            "the same steps"
        )
    prompts = probe.positions.prompt_keys.numpy()
    groups = position_groups(
        probe.initial.kl_teacher_student.numpy().astype(np.float64), probe.positions.correction_mask.numpy()
    )
    effects: list[Effect] = []
    for step in steps:
        pair = sides[0][step], sides[1][step]
        if len(pair[0]) != len(pair[1]):
            raise ValueError(
                f"step {step} has {len(pair[0])} measurements of {names[0]} and {len(pair[1])} of {names[1]}; give as "
                "many of each, in the order in which they are paired"
            )
        each_seed = [_differences(a, b) for a, b in zip(*pair, strict=True)]
        effects += _effects(step, each_seed, prompts, groups, num_resamples, seed)
    return ProbeComparison(names[0], names[1], sizes.pop(), tuple(effects), num_resamples)


def position_groups(conflict: Array, corrections: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """Groups of positions: all, corrections, accepted ones, and quartiles of conflict.

    Positions are ranked by initial KL(T||S), ties by their number, and cut into four parts of equal size (of sizes
    that differ by at most one where four does not divide their number).

    Args:
        conflict: [N] initial KL(T||S), nats.
        corrections: [N] True at corrections.

    Returns:
        [N] masks by name.
    """
    groups = {ALL: np.ones(len(conflict), dtype=bool), CORRECTIONS: corrections, ACCEPTED: ~corrections}
    for name, part in zip(QUARTILES, np.array_split(np.argsort(conflict, kind="stable"), NUM_QUARTILES), strict=True):
        groups[name] = np.isin(np.arange(len(conflict)), part)
    return groups


def prompt_means(values: Array, prompts: NDArray[np.int64], mask: NDArray[np.bool_]) -> Array:
    """Means of a figure within each prompt.

    Args:
        values: [N].
        prompts: [N] prompt of each position.
        mask: [N] positions that count.

    Returns:
        [P] in the order of rising prompt, NaN where no position of a prompt counts.
    """
    _, index = np.unique(prompts, return_inverse=True)
    size = int(index.max()) + 1
    count = np.bincount(index[mask], minlength=size).astype(np.float64)
    total = np.bincount(index[mask], weights=values[mask], minlength=size)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def resample_counts(num_prompts: int, num_resamples: int, seed: int) -> NDArray[np.int64]:
    """[R, P]: how often each prompt is drawn, with replacement and P draws, in each resample."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), num_resamples)


def bootstrap_means(means: Array, counts: NDArray[np.int64]) -> Array:
    """Prompt-equal means of resampled prompts.

    Args:
        means: [P, M], NaN where a prompt has no position.
        counts: [R, P] of :func:`resample_counts`.

    Returns:
        [R, M]; NaN where a resample holds no prompt with a position.
    """
    present = ~np.isnan(means)
    filled = np.where(present, means, 0.0)
    with np.errstate(invalid="ignore"):
        parts = [(block @ filled) / (block @ present) for block in np.split(counts, range(_BLOCK, len(counts), _BLOCK))]
    return np.concatenate(parts)


def _effects(
    step: int,
    each_seed: Sequence[Mapping[str, Array]],
    prompts: NDArray[np.int64],
    groups: Mapping[str, NDArray[np.bool_]],
    num_resamples: int,
    seed: int,
) -> list[Effect]:
    names = [(metric, group) for metric in each_seed[0] for group in groups]
    by_seed = np.stack(
        [[prompt_means(d[metric], prompts, groups[group]) for metric, group in names] for d in each_seed]
    )
    means = by_seed.mean(axis=0).T
    counts = resample_counts(means.shape[0], num_resamples, seed)
    columns = {name: index for index, name in enumerate(names)}
    values, resampled = np.nanmean(means, axis=0), bootstrap_means(means, counts)
    seed_values = np.nanmean(by_seed, axis=2)
    result = []
    for metric in each_seed[0]:
        low, high = columns[metric, "Q1"], columns[metric, "Q4"]
        shown = [(group, columns[metric, group], None) for group in groups] + [(CONTRAST, high, low)]
        for group, plus, minus in shown:
            value, draws, seeds = values[plus], resampled[:, plus], seed_values[:, plus]
            used = groups[group] if minus is None else groups["Q1"] | groups["Q4"]
            if minus is not None:
                value, draws, seeds = value - values[minus], draws - resampled[:, minus], seeds - seed_values[:, minus]
            ends = np.nanquantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
            result.append(
                Effect(
                    step=step,
                    metric=metric,
                    group=group,
                    value=float(value),
                    low=float(ends[0]),
                    high=float(ends[1]),
                    num_prompts=len(np.unique(prompts[used])),
                    num_positions=int(used.sum()),
                    num_seeds=len(each_seed),
                    seed_sd=float(np.std(seeds, ddof=1)) if len(each_seed) > 1 else float("nan"),
                )
            )
    return result


def _differences(a: Measurement, b: Measurement) -> dict[str, Array]:
    """[N] differences by metric."""
    names = ("c1", "c_top", "kl_teacher_student", "kl_student_teacher", "entropy")
    found: dict[str, Array] = {n: getattr(a.measures, n).numpy() - getattr(b.measures, n).numpy() for n in names}
    return {"c1": found["c1"], "c_top": found["c_top"], "c_rest": found["c_top"] - found["c1"], **found}


def _by_step(probe: Probe, side: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    steps: dict[int, list[Measurement]] = {}
    for each in side:
        if each.probe != probe.digest or len(each.measures.c1) != len(probe):
            raise ValueError(
                f"the measurement of {each.label} at step {each.step} is of another probe ({each.probe[:8]}, this one "
                f"is {probe.digest[:8]}); measure it on this one"
            )
        if each.step is None:
            raise ValueError(f"the measurement of {each.label} has no step; measure it again with --steps")
        steps.setdefault(each.step, []).append(each)
    return steps
