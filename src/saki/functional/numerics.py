"""Log-space arithmetic that stays finite at the edges."""

from __future__ import annotations

import torch
from torch import Tensor


def normalized_log_probs(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis in float64, whatever the input's dtype.

    Logits of any precision (or float32 log-probs, which sum to one only up to rounding) define one exact
    distribution; proposals, acceptance, residual and scores all use it.

    Args:
        logits: [..., V], any floating dtype; -inf marks impossible tokens.

    Returns:
        [..., V] float64 log-probs. A row of -inf alone, or with a NaN, becomes NaN.
    """
    return torch.log_softmax(logits.to(torch.float64), dim=-1)


def excess_entropy(u: Tensor) -> Tensor:
    """g(u) = u e^u - expm1(u) = u e^u - e^u + 1 >= 0, the summand of KL in its non-negative form.

    sum_v p(v) g(u(v)) with u = log q/p equals KL(q||p), without the cancellation of sum q log(q/p).

    Args:
        u: Finite values, or -inf where q = 0 (there g = 1).
    """
    safe = torch.where(torch.isneginf(u), torch.zeros_like(u), u)
    value = safe * safe.exp() - torch.expm1(safe)
    return torch.where(torch.isneginf(u), torch.ones_like(u), value)
