"""Attention over key-value slabs, registered with the library under one name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

SLAB_ATTENTION = "saki_slab"

GROUPED_DEVICES = {"cpu"}
"""Types of devices on which grouped heads may stay grouped under a plain causal mask. A GPU has such kernels for 16-bit
numbers only, and older ones have none; without, all scores would be made, so keys and values are repeated there."""


def register_slab_attention() -> str:
    """Make slab attention known to transformers (again is harmless); returns its name."""
    AttentionInterface.register(SLAB_ATTENTION, slab_attention)
    return SLAB_ATTENTION


def plainly_causal(device: torch.device) -> Tensor:
    """A mask [1, 1, 1, 1] by which :func:`slab_attention` lets each query attend what stands at and before its place.

    Whole sequences need no more, and kernels that know it make no scores above the diagonal.
    """
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)


def slab_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention with the query groups of one key head folded into the query axis.

    Args:
        module: The attention layer (unused).
        query: [B, H_q, Q, D].
        key: [B, H_kv, S, D], a view into a slab.
        value: [B, H_kv, S, D].
        attention_mask: [B, 1, Q, S] bool, True = attend; or :func:`plainly_causal`, where Q = S.
        scaling: Factor on the scores; None stands for 1 / sqrt(D).
        **kwargs: What else the library passes; the mask says it all already.

    Returns:
        [B, Q, H_q, D_v], and None for the weights.
    """
    if attention_mask is None:
        raise ValueError("slab attention needs an explicit mask, got None")
    rows, query_heads, queries, dim = query.shape
    key_heads = key.shape[1]
    groups = query_heads // key_heads
    if attention_mask.numel() == 1:
        grouped = groups > 1 and query.device.type in GROUPED_DEVICES
        if groups > 1 and not grouped:
            key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
        return output.transpose(1, 2).contiguous(), None
    folded = query.reshape(rows, key_heads, groups * queries, dim)
    mask = attention_mask
    if groups > 1:
        mask = mask.unsqueeze(2).expand(-1, -1, groups, -1, -1).reshape(rows, 1, groups * queries, -1)
    output = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    output = output.reshape(rows, query_heads, queries, -1)
    return output.transpose(1, 2).contiguous(), None


def causal_slab_mask(positions: Tensor, visible: int, window: int | None = None) -> Tensor:
    """Which slots each query may attend: those up to its own position, and within its window.

    Args:
        positions: [B, Q] absolute positions of the queries.
        visible: Slots that the mask spans, S.
        window: Sliding window in tokens, the query included; None for full attention.

    Returns:
        [B, 1, Q, S] bool.
    """
    slots = torch.arange(visible, device=positions.device)
    mask = slots <= positions.unsqueeze(-1)
    if window is not None:
        mask &= slots > positions.unsqueeze(-1) - window
    return mask.unsqueeze(1)
