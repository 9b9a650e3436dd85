"""The engine of a trainer: modules of its own, beside the trainable ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from saki.models import PairSpec, cast_weights
from saki.rollout import HFDecoder, ResidentEngine


def resident_engine(
    student: nn.Module,
    teacher: nn.Module | None,
    spec: PairSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_batch_rows: int,
    compiled: bool = False,
    adaptive_block_size: bool = False,
) -> ResidentEngine:
    """A :class:`ResidentEngine` whose student is a copy of the trainable model (LoRA merged on the copy).

    Args:
        student: The trainable model, plain or PEFT; it is left as it is.
        teacher: The teacher; the engine takes it over.
        spec: Shared vocabulary and stop set.
        dtype: Dtype of the copy.
        device: Where both models run.
        max_batch_rows: Rows that roll out together.
        compiled: Whether forwards and bridge are compiled.
        adaptive_block_size: Whether K follows the acceptance.
    """
    decoder = frozen_copy(student, spec, dtype=dtype, device=device)
    decoder.version = -1  # nothing has been synced yet
    verifier = HFDecoder(teacher.to(device), spec.vocab_size) if teacher is not None else None
    return ResidentEngine(
        decoder,
        verifier,
        spec.stop_token_ids,
        max_batch_rows=max_batch_rows,
        compiled=compiled,
        adaptive_block_size=adaptive_block_size,
    )


def frozen_copy(model: nn.Module, spec: PairSpec, *, dtype: torch.dtype, device: torch.device) -> HFDecoder:
    """A decoder with a copy of a model's present weights (LoRA merged on the copy).

    Args:
        model: A causal LM, plain or PEFT; it is left as it is.
        spec: Shared vocabulary.
        dtype: Dtype of the copy.
        device: Where it runs.
    """
    own: Any = copy.deepcopy(model)
    if hasattr(own, "merge_and_unload"):
        own = own.merge_and_unload()
    # transformers 5.24 renamed gradient checkpointing.
    disable = getattr(own, "activation_checkpointing_disable", None) or own.gradient_checkpointing_disable
    disable()
    cast_weights(own, dtype)
    return HFDecoder(own.to(device), spec.vocab_size)
