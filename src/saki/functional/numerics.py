"""Log-space arithmetic that stays finite at the edges."""

from __future__ import annotations

import torch
from torch import Tensor


def normalized_log_probs(logits: Tensor) -> Tensor:
    """Log-softmax over the last axis: in float64 for float64 logits, in float32 for all others.

    The result defines one law, p = exp(log_p) / sum exp(log_p); proposals, acceptance, residual and scores all use
    these same numbers. Sums over the vocabulary are taken in float64.

    Args:
        logits: [..., V], any floating dtype; -inf marks impossible tokens.

    Returns:
        [..., V] log-probs. A row of -inf alone, or with a NaN, becomes NaN.
    """
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
