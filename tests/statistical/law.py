"""An independent oracle for the law of guided rollouts: plain arithmetic on tiny vocabularies."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import chi2

NextLaw = Callable[[tuple[int, ...]], np.ndarray]
"""Tokens so far -> next-token probabilities."""

Event = tuple[int, int, bool]
"""(proposal, committed token, correction) at one position."""


def bridge_law(p: np.ndarray, t: np.ndarray, radius: float) -> np.ndarray:
    """q by 200 halvings of beta, written as Eq. 1-2 read; zeros as in SPEC 2 (C = {p > 0, T > 0})."""
    common = (p > 0) & (t > 0)
    if radius == 0 or not common.any():
        return p

    def q_of(beta: float) -> np.ndarray:
        weights = np.where(common, p ** (1 - beta) * np.where(common, t, 1.0) ** beta, 0.0)
        return weights / weights.sum()

    def kl(beta: float) -> float:
        q = q_of(beta)[common]
        return float((q * np.log(q / p[common])).sum())

    if kl(1.0) <= radius:
        return q_of(1.0)
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if kl(middle) <= radius else (low, middle)
    # With p(C) < 1, KL begins at -log p(C): where that is too much already, nothing but p is feasible.
    return q_of(low) if low > 0 else p


def coupling_law(p: np.ndarray, q: np.ndarray) -> dict[Event, float]:
    """Joint law of (z, y, C) under maximal coupling, from Eq. 3-7."""
    law: dict[Event, float] = {}
    residual = np.clip(q - p, 0, None)
    mass = residual.sum()
    for z in range(len(p)):
        if p[z] == 0:
            continue
        accept = min(1.0, q[z] / p[z])
        law[z, z, False] = p[z] * accept
        for y in range(len(p)):
            if accept < 1 and residual[y] > 0:
                law[z, y, True] = p[z] * (1 - accept) * residual[y] / mass
    return {event: share for event, share in law.items() if share > 0}


def enumerate_joint(
    student: NextLaw, teacher: NextLaw, prompt: tuple[int, ...], radius: float, length: int, stop_ids: set[int]
) -> dict[tuple[Event, ...], float]:
    """Probability of every finished history of (z, y, C)."""
    finished: dict[tuple[Event, ...], float] = {}
    open_: dict[tuple[Event, ...], float] = {(): 1.0}
    for _ in range(length):
        grown: dict[tuple[Event, ...], float] = {}
        for history, weight in open_.items():
            prefix = prompt + tuple(event[1] for event in history)
            p, t = student(prefix), teacher(prefix)
            for event, share in coupling_law(p, bridge_law(p, t, radius)).items():
                target = finished if event[1] in stop_ids else grown
                target[(*history, event)] = weight * share
        open_ = grown
    return finished | open_


def skd_law(p: np.ndarray, t: np.ndarray, top_k: int) -> np.ndarray:
    """Keep a student's token among the teacher's top k, else draw from the teacher; no two entries of t are equal."""
    kept = np.zeros_like(p)
    top = np.argsort(-t)[:top_k]
    kept[top] = p[top]
    return kept + (1 - kept.sum()) * t


def enumerate_law(
    student: NextLaw, teacher: NextLaw, prompt: tuple[int, ...], radius: float, length: int, stop_ids: set[int]
) -> dict[tuple[int, ...], float]:
    """Probability of every finished completion under the guided law: products of q, without any coupling."""
    return enumerate_behavior(
        lambda tokens: bridge_law(student(tokens), teacher(tokens), radius), prompt, length, stop_ids
    )


def enumerate_behavior(
    behavior: NextLaw, prompt: tuple[int, ...], length: int, stop_ids: set[int]
) -> dict[tuple[int, ...], float]:
    """Probability of every finished completion when each token comes from ``behavior`` of all tokens before it."""
    finished: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        grown: dict[tuple[int, ...], float] = {}
        for tokens, weight in open_.items():
            for token, share in enumerate(behavior(prompt + tokens)):
                target = finished if token in stop_ids else grown
                if share > 0:
                    target[(*tokens, token)] = weight * float(share)
        open_ = grown
    return finished | open_


def chi_square_p_value(counts: dict, expected: dict, num: int) -> float:
    """P-value of observed counts, cells below an expectation of 5 merged; 0 where an impossible cell was seen."""
    if any(expected.get(cell, 0.0) <= 0 for cell, count in counts.items() if count):
        return 0.0
    cells = sorted((share * num, counts.get(cell, 0)) for cell, share in expected.items() if share > 0)
    merged: list[list[float]] = [[0.0, 0.0]]
    for expectation, count in cells:
        if merged[-1][0] >= 5:
            merged.append([0.0, 0.0])
        merged[-1][0] += expectation
        merged[-1][1] += count
    if merged[-1][0] < 5 and len(merged) > 1:
        last = merged.pop()
        merged[-1][0] += last[0]
        merged[-1][1] += last[1]
    if len(merged) == 1:
        return 1.0
    statistic = sum((count - expectation) ** 2 / expectation for expectation, count in merged)
    return float(chi2.sf(statistic, len(merged) - 1))


def sequential_chi_square(
    draw: Callable[[int, int], list],
    expected: dict,
    alpha: float,
    num_looks: int,
    first: int = 500,
) -> tuple[bool, int]:
    """Chi-square at sample sizes first * 2^k, look k (from 1) at alpha (6 / pi^2) / k^2, so that alpha bounds them all.

    Args:
        draw: (begin, end) -> the samples begin .. end - 1.
        expected: Probability of each outcome.
        alpha: Overall false-alarm rate.
        num_looks: Looks at the data.
        first: Sample size of the first look.

    Returns:
        Whether the law was rejected, and the sample size at which the test ended.
    """
    counts: dict[object, int] = {}
    seen = 0
    for look in range(1, num_looks + 1):
        size = first * 2 ** (look - 1)
        for outcome in draw(seen, size):
            counts[outcome] = counts.get(outcome, 0) + 1
        seen = size
        if chi_square_p_value(counts, expected, seen) < alpha * (6 / math.pi**2) / look**2:
            return True, seen
    return False, seen
