"""A model's weights in another dtype, as if the checkpoint had been loaded in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast what a checkpoint holds, in place.

    ``Module.to`` casts every buffer. Those that no checkpoint holds, such as the frequencies of rotary embeddings, are
    computed in float32 and stay so when a checkpoint is loaded; rounded to bfloat16 they turn keys a few thousand
    positions away by radians. Weights that an architecture keeps in float32, such as the routers of some mixtures of
    experts, stay as well.

    Args:
        model: The model.
        dtype: Floating dtype of the weights.
    """
    exempt = _exempt_names(model, dtype)
    for name, owner, leaf, tensor in _weights(model):
        if not tensor.is_floating_point():
            continue
        cast = tensor.to(torch.float32 if exempt and exempt.search(name) else dtype)
        if isinstance(tensor, nn.Parameter):
            tensor.data = cast
        else:
            owner._buffers[leaf] = cast


def _weights(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Name, owning module, name in it and tensor of what a checkpoint holds."""
    for prefix, module in model.named_modules():
        for leaf, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and leaf not in module._non_persistent_buffers_set:
                yield f"{prefix}.{leaf}".lstrip("."), module, leaf, tensor


def _exempt_names(model: nn.Module, dtype: torch.dtype) -> re.Pattern[str] | None:
    """What the library keeps in float32 when it loads this model in this dtype."""
    own: Any = model
    kept: list[str] = []
    if dtype in (torch.float16, torch.bfloat16):
        kept += getattr(own, "_keep_in_fp32_modules_strict", None) or ()
    if dtype == torch.float16:
        kept += getattr(own, "_keep_in_fp32_modules", None) or ()
    return re.compile("|".join(kept)) if kept else None
