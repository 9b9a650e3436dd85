"""A model's forward over key-value slabs as one compiled graph."""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

import torch
from torch import Tensor, nn

from saki.rollout.kv_cache import SlabCache


class CompiledForward:
    """Logits of one forward over filled slabs, through ``torch.compile``.

    Rows, queries and visible slots stay symbolic, so one graph serves all lengths and another the forwards of a single
    token. The graph's guards on the model's own modules are left out: a decoder owns its model and changes nothing
    about it but the values of its weights, which the graph reads anew each time. Graphs are kept by code object, so
    models of one architecture share theirs, and each architecture has a code object of its own.

    Args:
        model: A causal LM in eval mode, with slab attention.
        cache_name: Name of its cache argument.
    """

    def __init__(self, model: nn.Module, cache_name: str) -> None:
        def forward(
            token_ids: Tensor, positions: Tensor, mask: Any, index: Tensor, keys: list[Tensor], values: list[Tensor],
            num_rows: int, num_slots: int, visible: int,
        ) -> Tensor:  # fmt: skip
            cache = SlabCache(num_rows, num_slots, 0, keys, values)
            cache.announce(index, visible)
            output: Any = model(
                input_ids=token_ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{cache_name: cache},
            )
            logits: Tensor = output.logits
            return logits

        forward = types.FunctionType(
            _code_of_its_own(forward.__code__, _architecture(model)), globals(), "forward", None, forward.__closure__
        )
        options: Any = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
        self._forward = torch.compile(forward, dynamic=True, options=options)

    def __call__(self, arguments: dict[str, Any], cache: SlabCache) -> Tensor:
        """Logits [B, Q, V'] of every query.

        Args:
            arguments: Of the model's eager forward: ``input_ids``, ``attention_mask`` and ``position_ids``.
            cache: Filled and announced; its slabs are written.
        """
        logits: Tensor = self._forward(
            arguments["input_ids"],
            arguments["position_ids"],
            arguments["attention_mask"],
            cache.index,
            cache.keys,
            cache.values,
            cache.num_rows,
            cache.num_slots,
            cache.visible,
        )
        return logits


_ORIGINS = ("_name_or_path", "transformers_version")
"""Settings that say where a model is from, and nothing of its graph."""


def _architecture(model: nn.Module) -> str:
    """All that a graph takes for granted of a model: its class, its settings, and shape and place of its tensors."""
    config: Any = model.config
    settings = {name: value for name, value in config.to_dict().items() if name not in _ORIGINS}
    tensors = [
        (name, tuple(each.shape), str(each.dtype), str(each.device))
        for name, each in (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    ]
    return f"{type(model).__qualname__} {settings} {tensors}"


@functools.cache
def _code_of_its_own(code: types.CodeType, architecture: str) -> types.CodeType:
    return code.replace(co_name=f"forward_{hashlib.blake2b(architecture.encode(), digest_size=8).hexdigest()}")
