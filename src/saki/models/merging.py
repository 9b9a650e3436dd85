"""The weights of a model in its base model's own names: adapters merged and shards gathered on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class UnmergeableAdapterError(ValueError):
    """An adapter cannot be expressed as a change of the base model's weights."""


@dataclass(frozen=True)
class _Entry:
    """One tensor of the base model and what an adapter adds to it."""

    name: str
    tensor: Tensor
    layer: Any = None
    adapters: tuple[str, ...] = ()
    kind: str = "weight"

    @torch.no_grad()  # not around the generator: its wrapper would hold on to the tensor before
    def value(self) -> Tensor:
        tensor = whole_tensor(self.tensor.detach())
        for adapter in self.adapters:
            delta = _delta(self.layer, adapter, self.kind)
            dtype = torch.promote_types(tensor.dtype, delta.dtype)
            tensor = tensor.to(dtype) + delta.to(device=tensor.device, dtype=dtype)
        return tensor


def plain_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and persistent buffers of a model under its base model's own names.

    For a PEFT LoRA model the merged weights W + sum of the active adapters' B A scaling, the copies of
    ``modules_to_save``, and the rest as it is. The model is only read: merging and unmerging in place, as the
    library offers it, drifts by rounding. A model without adapters yields its own tensors. Tied tensors come once,
    under the first name.

    Where FSDP2 has sharded the parameters (DTensor), each tensor is gathered from all ranks as it is yielded, and no
    more than one at a time is held here: whoever keeps one beyond the next pays for it. Every rank must take the whole
    stream, since gathering is collective. Parameters that a forward has left gathered are sharded again first.

    Args:
        model: A model, a PEFT model, or a model into which adapters were injected; sharded by FSDP2 or not.

    Returns:
        Iterator over (name, tensor). Untouched tensors are detached views, merged and gathered ones are new. Merged
        ones come in the wider of the two dtypes (bfloat16 base and float32 adapter: float32), so that small changes
        survive. One merged tensor is made at a time.

    Raises:
        UnmergeableAdapterError: If an adapter is not plain LoRA (DoRA, quantised base, trainable tokens, target
            parameters), or changes one of two tied tensors.
    """
    root = model
    if "peft" in sys.modules:
        from peft import PeftModel

        if isinstance(model, PeftModel):
            root = model.get_base_model()
    _reshard(model)
    entries: list[_Entry] = []
    replaced: set[int] = set()
    _collect(root, "", entries, replaced)
    _refuse_broken_ties(entries, replaced)
    return _values(entries)


def _values(entries: list[_Entry]) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for entry in entries:
        if id(entry.tensor) not in seen:
            seen.add(id(entry.tensor))
            yield entry.name, entry.value()


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor as it is, or gathered from all ranks where it is sharded, which every rank must then ask for."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            return tensor.full_tensor()
    return tensor


def _reshard(model: nn.Module) -> None:
    """What a forward leaves gathered is in the dtype of computation, not the parameters' own."""
    if "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _collect(module: nn.Module, prefix: str, entries: list[_Entry], replaced: set[int]) -> None:
    """Walk the module tree; adapter modules stand for the base module that they wrap."""
    if "peft" in sys.modules:
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper

        if isinstance(module, ModulesToSaveWrapper):
            chosen = module.original_module
            if module.active_adapters and not module.disable_adapters:
                chosen = module.modules_to_save[module.active_adapters[0]]
                replaced.update(id(tensor) for tensor in module.original_module.parameters())
            _collect(chosen, prefix, entries, replaced)
            return
        if isinstance(module, AuxiliaryTrainingWrapper):
            raise _refusal(prefix, f"a {type(module).__name__}")
        if isinstance(module, BaseTunerLayer):
            _collect_lora(module, prefix, entries)
            return
    for name, parameter in module._parameters.items():
        if parameter is not None:
            entries.append(_Entry(prefix + name, parameter))
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            entries.append(_Entry(prefix + name, buffer))
    for name, child in module.named_children():
        # Activation checkpointing by FSDP's own means wraps a block without being part of its name.
        inner = prefix if name == "_checkpoint_wrapped_module" else f"{prefix}{name}."
        _collect(child, inner, entries, replaced)


def _collect_lora(layer: Any, prefix: str, entries: list[_Entry]) -> None:
    from peft.tuners.lora import layer as lora

    if type(layer) not in (lora.Linear, lora.Embedding):
        raise _refusal(prefix, f"a {type(layer).__module__}.{type(layer).__name__}")
    base = layer.get_base_layer()
    if layer.merged and layer.disable_adapters:
        raise _refusal(prefix, "a merged adapter that is switched off")
    active: tuple[str, ...] = ()
    if not layer.merged and not layer.disable_adapters:
        active = tuple(name for name in layer.active_adapters if name in layer.scaling)
    for adapter in active:
        if adapter in getattr(layer, "lora_variant", {}) or layer.use_dora.get(adapter, False):
            raise _refusal(prefix, f"adapter {adapter!r}, a LoRA variant such as DoRA")
    biased = tuple(name for name in active if getattr(layer, "lora_bias", {}).get(name, False))
    if biased and base.bias is None:
        raise _refusal(prefix, f"adapter {biased[0]!r} with a bias on a layer without one")
    for name, parameter in base._parameters.items():
        if parameter is not None:
            adapters = active if name == "weight" else biased if name == "bias" else ()
            entries.append(_Entry(prefix + name, parameter, layer, adapters, name))
    for name, buffer in base._buffers.items():
        if buffer is not None and name not in base._non_persistent_buffers_set:
            entries.append(_Entry(prefix + name, buffer))


def _delta(layer: Any, adapter: str, kind: str) -> Tensor:
    if kind == "bias":
        return whole_tensor(layer.lora_B[adapter].bias.detach()) * layer.scaling[adapter]
    if adapter in layer.lora_A:
        parts = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        flipped = layer.fan_in_fan_out
    else:
        parts, flipped = (layer.lora_embedding_A[adapter], layer.lora_embedding_B[adapter]), True
    if not any(hasattr(part, "full_tensor") for part in parts):
        delta: Tensor = layer.get_delta_weight(adapter)
        return delta
    # The library's product of two sharded factors would be reduced over ranks, in an order of its own.
    a, b = (whole_tensor(part.detach()) for part in parts)
    dtype, half = b.dtype, b.device.type == "cpu" and b.dtype in (torch.float16, torch.bfloat16)
    product = b.float() @ a.float() if half else b @ a
    return ((product.T if flipped else product) * layer.scaling[adapter]).to(dtype)


def _refuse_broken_ties(entries: list[_Entry], replaced: set[int]) -> None:
    """A change of one of two tied tensors cannot be told to a model that ties them."""
    names: dict[int, list[str]] = {}
    for entry in entries:
        names.setdefault(id(entry.tensor), []).append(entry.name)
    for entry in entries:
        tied = names[id(entry.tensor)]
        if (entry.adapters and len(tied) > 1) or id(entry.tensor) in replaced:
            raise UnmergeableAdapterError(
                f"an adapter changes a weight that is tied to {tied[0]!r} in the base model, so the merged model would "
                "need two weights; leave the embeddings out of the adapter or untie them first"
            )


def _refusal(prefix: str, what: str) -> UnmergeableAdapterError:
    return UnmergeableAdapterError(
        f"the adapter at {prefix.rstrip('.')!r} is {what}, which cannot be merged into plain weights; "
        "expected plain LoRA on linear or embedding layers"
    )
