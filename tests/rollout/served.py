"""Decoders that server processes build by import path."""

from __future__ import annotations

from typing import Any

import torch

from saki.models import TableLM, tiny_qwen3
from saki.rollout import HFDecoder, TableDecoder


def tiny_decoder(vocab_size: int, dtype: str = "float32", **shape: Any) -> HFDecoder:
    """A tiny random Qwen3 with two padding ids."""
    model = tiny_qwen3(vocab_size + 2, dtype=getattr(torch, dtype), **shape)
    return HFDecoder(model, vocab_size)


def table_decoder(nan_after: int | None = None, **options: Any) -> TableDecoder:
    """A table model; with ``nan_after`` the law behind that token is not a number."""
    model = TableLM(**options)
    if nan_after is not None:
        with torch.no_grad():
            model.table[nan_after] = torch.nan
    return TableDecoder(model)


def broken_decoder() -> TableDecoder:
    """A model that cannot be made."""
    raise ValueError("no such model")
