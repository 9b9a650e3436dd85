"""Divergences between next-token laws, from log-probs, with finite gradients at -inf."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def kl_divergence(log_a: Tensor, log_b: Tensor) -> Tensor:
    """KL(a || b) = sum a (log a - log b) in nats over the last axis.

    Terms with a = 0 are 0 (also in the gradient); where a > 0 = b the result is +inf.

    Args:
        log_a: [..., V] normalised log-probs.
        log_b: [..., V] normalised log-probs.
    """
    possible = log_a > -torch.inf
    safe_a = torch.where(possible, log_a, 0.0)
    safe_b = torch.where(possible, log_b, 0.0)
    return (torch.where(possible, safe_a.exp(), 0.0) * (safe_a - safe_b)).sum(dim=-1)


def truncated_kl(log_a: Tensor, log_b: Tensor, top_k: int, *, renormalize: bool = False) -> Tensor:
    """sum a (log a - log b) in nats over the top_k likeliest entries of a; KL(a || b) where top_k covers them all.

    Args:
        log_a: [..., V] normalised log-probs.
        log_b: [..., V] normalised log-probs.
        top_k: Entries, at least 1.
        renormalize: Whether a is made to sum to 1 over these entries; b stays a law over all V.
    """
    kept_a, ids = log_a.topk(min(top_k, log_a.shape[-1]), dim=-1)
    if renormalize:
        kept_a = torch.log_softmax(kept_a, dim=-1)
    return kl_divergence(kept_a, log_b.gather(-1, ids))


def total_variation(log_a: Tensor, log_b: Tensor) -> Tensor:
    """TV(a, b) = 1/2 sum |a - b| over the last axis (Eq. 8, 41)."""
    return 0.5 * (log_a.exp() - log_b.exp()).abs().sum(dim=-1)


def entropy(log_a: Tensor) -> Tensor:
    """H(a) = -sum a log a in nats over the last axis; terms with a = 0 are 0."""
    safe = torch.where(log_a > -torch.inf, log_a, 0.0)
    return -(torch.where(log_a > -torch.inf, safe.exp(), 0.0) * safe).sum(dim=-1)


def pinsker_bound(radius: float) -> float:
    """sqrt(radius / 2): the most that TV(p, q), hence the correction rate, can be (Eq. 11, 57).

    Args:
        radius: KL radius in nats, >= 0.

    Raises:
        ValueError: If the radius is negative.
    """
    if radius < 0:
        raise ValueError(f"radius must be >= 0, got {radius}")
    return math.sqrt(radius / 2)
