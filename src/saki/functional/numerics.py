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
