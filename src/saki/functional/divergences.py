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
