"""Routers: which branch of a method trains each token."""

from __future__ import annotations

import torch
from torch import Tensor

from saki.functional import RowKeys, Stream, keyed_uniforms
from saki.objectives.targets import TokenFacts
from saki.types import RolloutBatch


def route_to_first(batch: RolloutBatch) -> Tensor:
    """Every position to branch 0.

    Returns:
        [B, T] int64; positions outside the response mask are ignored.
    """
    return batch.correction_mask.long() * 0


def route_corrections(batch: RolloutBatch) -> Tensor:
    """Accepted positions (C_t = 0) to branch 0, corrections (C_t = 1) to branch 1 (Eq. 16).

    Returns:
        [B, T] int64; positions outside the response mask are ignored.
    """
    return batch.correction_mask.long()


def route_randomly(batch: RolloutBatch) -> Tensor:
    """As many positions of each row as it has corrections, uniformly without replacement, to branch 1 (Random-TM).

    The draw is keyed by (seed, prompt, sample, position) in stream PLACEMENT and does not look at where the corrections
    are.

    Returns:
        [B, T] int64; positions outside the response mask are ignored.
    """
    return _smallest_keys(batch, torch.ones_like(batch.tv, dtype=torch.float64))


def route_by_tv(batch: RolloutBatch) -> Tensor:
    """As many positions of each row as it has corrections, drawn by TV(p, q) without replacement, to branch 1.

    The m_i smallest keys -log U / TV are taken (Appendix D), which is sequential sampling without replacement with
    probabilities proportional to TV. Where fewer than m_i positions have TV > 0 the rest is drawn uniformly.

    Returns:
        [B, T] int64; positions outside the response mask are ignored.
    """
    return _smallest_keys(batch, torch.nan_to_num(batch.tv.double()))


def route_by_preference(batch: RolloutBatch, threshold: float = 0.0) -> Tensor:
    """Positions where the teacher likes y more, T(y) - p(y) > threshold, to branch 0, the rest to branch 1.

    p is that of draft time.

    Args:
        batch: The rollout.
        threshold: In [-1, 1].

    Returns:
        [B, T] int64; positions outside the response mask are ignored.
    """
    preference = batch.teacher_logprobs.double().exp() - batch.student_logprobs.double().exp()
    return (~(preference > threshold)).long()


def route_lowest(batch: RolloutBatch, facts: TokenFacts, fraction: float) -> Tensor:
    """The tokens that the student found least likely to branch 0, the rest to branch 1.

    Of the N tokens of the whole step they are the max(1, floor(fraction N)) of smallest draft-time log p(y), and any
    that equal the last of them; a token of which the student was certain, log p(y) = 0, is never one.

    Args:
        batch: The rollout.
        facts: ``step_logprobs`` where the step lies on several ranks.
        fraction: In (0, 1].

    Returns:
        [B, T] int64; positions outside the response mask are ignored.
    """
    logprobs = batch.student_logprobs.double()
    ordered = _ordered(logprobs, batch, facts.step_logprobs)
    if not ordered.numel():
        return route_to_first(batch)
    bound = ordered[max(1, int(fraction * ordered.numel())) - 1]
    return (~((logprobs <= bound) & (logprobs < 0))).long()


def route_by_entropy(
    batch: RolloutBatch, facts: TokenFacts, threshold: float | None = None, quantile: float | None = None
) -> Tensor:
    """Positions where H(T) exceeds a threshold to branch 1, the rest to branch 0.

    Args:
        batch: The rollout.
        facts: Needs ``teacher_entropy``; ``step_entropies`` where the step lies on several ranks.
        threshold: The threshold in nats; needed without a quantile.
        quantile: The threshold as a quantile of the entropies of the whole step, instead.

    Returns:
        [B, T] int64; positions outside the response mask are ignored.
    """
    assert facts.teacher_entropy is not None
    entropy = facts.teacher_entropy.double()
    if quantile is not None:
        ordered = _ordered(entropy, batch, facts.step_entropies)
        if not ordered.numel():
            return route_to_first(batch)
        threshold = float(ordered[min(int(quantile * ordered.numel()), ordered.numel() - 1)])
    assert threshold is not None
    return (entropy > threshold).long()


def _ordered(values: Tensor, batch: RolloutBatch, of_step: Tensor | None) -> Tensor:
    """[M] float64, the values of all tokens of the step, rising; torch.quantile refuses more than 16 million."""
    return (values[batch.response_mask] if of_step is None else of_step.double()).sort().values


def _smallest_keys(batch: RolloutBatch, weights: Tensor) -> Tensor:
    """1 at the m_i valid positions of each row with the smallest -log U / weight, else 0."""
    valid = batch.response_mask
    counts = (batch.correction_mask & valid).sum(dim=1)
    keys = RowKeys(batch.seed, batch.prompt_keys, batch.sample_indices)
    positions = torch.arange(valid.shape[1]).expand(valid.shape)
    race = -keyed_uniforms(keys, positions, Stream.PLACEMENT).squeeze(-1).log()
    # Positions of weight 0 come after all others, among themselves by the bare race: that fills uniformly.
    weighted = torch.where(weights > 0, race / weights, torch.inf)
    weighted = torch.where(valid, weighted, torch.nan)  # NaN sorts last
    race = torch.where(valid, race, torch.nan)
    by_race = race.argsort(dim=1)
    order = by_race.gather(1, weighted.gather(1, by_race).argsort(dim=1, stable=True))
    rank = torch.empty_like(order).scatter_(1, order, positions.contiguous())
    return (rank < counts.unsqueeze(1)).long()
