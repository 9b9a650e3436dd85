"""Keyed draws from a categorical law."""

from __future__ import annotations

import torch
from torch import Tensor

from saki.functional.random import RowKeys, Stream, keyed_uniforms

RACE_MAX_VOCAB = 512
"""Up to this many ids a draw is an exponential race; above, an inverse CDF (one uniform instead of V)."""


def exponential_race(log_weights: Tensor, uniforms: Tensor) -> Tensor:
    """argmin_v E_v / w_v with E_v = -log U_v: a draw with probabilities w / sum w.

    Args:
        log_weights: [..., V], need not be normalised; -inf never wins while a finite weight is there.
        uniforms: [..., V] float64 in (0, 1).

    Returns:
        [...] int64.
    """
    return (log_weights - (-uniforms.log()).log()).argmax(dim=-1)


def inverse_cdf(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """First id whose cumulative weight exceeds U times the total, summed in float64.

    Args:
        log_probs: [..., V], need not be normalised.
        uniforms: [...] float64 in (0, 1).

    Returns:
        [...] int64. An id of probability 0 is never returned.
    """
    cumulative = log_probs.exp().cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[..., -1]
    # U times the total can round up to the total itself.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, target.unsqueeze(-1), right=True).squeeze(-1)
    return ids.clamp(max=log_probs.shape[-1] - 1)  # only a NaN row could point past the end


def uniforms_of_draw(keys: RowKeys, positions: Tensor, stream: Stream, vocab_size: int) -> Tensor:
    """The random numbers of :func:`draw` at each position: V of them for a race, one for an inverse CDF.

    A block's numbers can be made at once, ahead of the drafts that use them one position at a time.

    Args:
        keys: Identity of the B rows.
        positions: [B] or [B, K] absolute response positions.
        stream: Which use at these positions.
        vocab_size: V.

    Returns:
        [*positions.shape, V] or [*positions.shape, 1] float64.
    """
    return keyed_uniforms(keys, positions, stream, vocab_size if vocab_size <= RACE_MAX_VOCAB else 1)


def proposal_uniforms(keys: RowKeys, positions: Tensor, vocab_size: int) -> Tensor:
    """The random numbers of proposals; see :func:`uniforms_of_draw`."""
    return uniforms_of_draw(keys, positions, Stream.PROPOSAL, vocab_size)


def draw(log_weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw with probabilities proportional to the weights: by a race where there are V uniforms, else by inverse CDF.

    Args:
        log_weights: [B, V], need not be normalised.
        uniforms: [B, V] or [B, 1] from :func:`uniforms_of_draw`.

    Returns:
        [B] int64.
    """
    if uniforms.shape[-1] == log_weights.shape[-1]:
        return exponential_race(log_weights, uniforms)
    return inverse_cdf(log_weights, uniforms.squeeze(-1))


def draw_proposals(log_p: Tensor, uniforms: Tensor) -> Tensor:
    """Draw the student's proposals z ~ p (Eq. 3, 36).

    Args:
        log_p: [B, V] log-probs.
        uniforms: [B, V] or [B, 1] from :func:`proposal_uniforms`.

    Returns:
        [B] int64.
    """
    return draw(log_p, uniforms)


def draw_teacher_samples(log_t: Tensor, keys: RowKeys, positions: Tensor) -> Tensor:
    """Draw v ~ T at each position, in stream TEACHER_SAMPLE (Appendix F).

    Args:
        log_t: [R, V] log-probs.
        keys: Identity of the R rows.
        positions: [R] absolute response positions.

    Returns:
        [R] int64.
    """
    return draw(log_t, uniforms_of_draw(keys, positions, Stream.TEACHER_SAMPLE, log_t.shape[-1]))
