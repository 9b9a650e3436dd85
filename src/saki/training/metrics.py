"""Metrics of a step: sums and counts that add up over micro-batches and ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saki.functional import pinsker_bound
from saki.training.ranks import Ranks
from saki.types import RolloutBatch


class MetricSums:
    """Means collected as (sum, count) pairs, totals, maxima, and plain values, until they are taken.

    What is taken is that of all ranks together, and the same on each of them, whichever names a rank has collected.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._totals: dict[str, list[float]] = {}
        self._maxima: dict[str, float] = {}
        self._values: dict[str, float] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Add to a mean."""
        entry = self._sums.setdefault(name, [0.0, 0.0])
        entry[0] += float(total)
        entry[1] += float(count)

    def total(self, name: str, value: Tensor | float) -> None:
        """Add to a figure of a step that adds up over ranks; over the steps of a log line its mean is taken."""
        entry = self._totals.setdefault(name, [0.0, 0.0])
        entry[0] += float(value)
        entry[1] += 1

    def maximum(self, name: str, value: Tensor | float) -> None:
        """Raise a maximum."""
        self._maxima[name] = max(self._maxima.get(name, -math.inf), float(value))

    def set(self, name: str, value: float) -> None:
        """Set a value that is equal on all ranks."""
        self._values[name] = float(value)

    def take(self, ranks: Ranks | None = None) -> dict[str, float]:
        """Everything collected since the last call; a mean without any count is left out.

        Args:
            ranks: The processes whose figures are joined, each of which must call this; None for this one alone.
        """
        own = (self._sums, self._totals, self._maxima, self._values)
        parts = [own] if ranks is None else ranks.gather(own)
        self._sums, self._totals, self._maxima, self._values = {}, {}, {}, {}
        joined, logs = MetricSums(), {}
        for sums, totals, maxima, values in parts:
            for name, (total, count) in sums.items():
                joined.add(name, total, count)
            for name, (total, steps) in totals.items():
                entry = joined._totals.setdefault(name, [0.0, steps])
                entry[0] += total
            for name, value in maxima.items():
                joined.maximum(name, value)
            logs.update(values)
        logs.update({name: total / count for name, (total, count) in joined._sums.items() if count})
        logs.update({name: total / steps for name, (total, steps) in joined._totals.items()})
        return logs | joined._maxima


def record_rollout(metrics: MetricSums, batch: RolloutBatch, bounded: bool = True) -> None:
    """Add what a rollout says of itself.

    ``rollout/kl_to_teacher`` estimates KL(p || T) from draws of q: the mean of (p/q)(y) [log p(y) - log T(y)],
    unbiased at each visited prefix; on student rollouts the weight is 1.

    Args:
        metrics: Where to.
        batch: The rollout.
        bounded: Whether the radius bounds its correction rate, as it does unless the behavior is SKD.
    """
    mask = batch.response_mask
    tokens = mask.sum()
    corrections = batch.correction_mask.sum()
    metrics.add("rollout/correction_rate", corrections, tokens)
    metrics.add("rollout/mean_tv", batch.tv[mask].double().sum(), tokens)
    metrics.add("rollout/mean_bridge_kl", batch.kl[mask].double().sum(), tokens)
    metrics.add("rollout/mean_beta", batch.beta[mask].double().sum(), tokens)
    log_p, log_q, log_t = (
        value[mask].double() for value in (batch.student_logprobs, batch.behavior_logprobs, batch.teacher_logprobs)
    )
    metrics.add("rollout/kl_to_teacher", ((log_p - log_q).exp() * (log_p - log_t)).sum(), tokens)
    mode_is_proposal = batch.teacher_mode_ids == batch.proposal_ids
    if int(corrections):
        metrics.add("rollout/mode_is_rejected_share", mode_is_proposal[batch.correction_mask].sum(), corrections)
    metrics.add("rollout/mean_length", batch.lengths.sum(), len(batch))
    metrics.maximum("rollout/max_length", batch.lengths.max())
    for reason, name in (("length", "truncated_share"), ("nan", "nan_share")):
        metrics.add(f"rollout/{name}", sum(r == reason for r in batch.finish_reasons), len(batch))
    if bounded:
        metrics.set("rollout/trust_region_radius", batch.trust_region_radius)
        metrics.set("rollout/pinsker_bound", pinsker_bound(batch.trust_region_radius))


def record_update(
    metrics: MetricSums,
    branch_names: tuple[str, ...],
    routes: Tensor,
    losses: Tensor,
    clamped: Tensor,
    logprob_gap: Tensor,
) -> None:
    """Add what a micro-batch of N valid tokens says.

    Args:
        metrics: Where to.
        branch_names: Names of the method's branches.
        routes: [N] branch of each token.
        losses: [N] nats, detached.
        clamped: [N] bool, where the advantage was clamped.
        logprob_gap: [N] nats, |log pi(y) - log p(y)| between trainer and drafting engine.
    """
    count = routes.numel()
    for index, name in enumerate(branch_names):
        chosen = routes == index
        metrics.add(f"loss/{name}", losses[chosen].double().sum(), chosen.sum())
        metrics.add(f"loss/{name}_share", chosen.sum(), count)
    metrics.add("train/clamped_share", clamped.sum(), count)
    metrics.add("train/logprob_gap_mean", logprob_gap.double().sum(), count)
    if count:
        metrics.maximum("train/logprob_gap_max", torch.nan_to_num(logprob_gap, nan=math.inf).max())
