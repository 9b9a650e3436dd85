"""Routers: which branch of a method trains each token."""

from __future__ import annotations

from torch import Tensor

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
