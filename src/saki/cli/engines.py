"""Engines for commands that do not train."""

from __future__ import annotations

import copy
import logging
import os

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from saki.models import resolve_pair
from saki.rollout import HFDecoder, ResidentEngine, TemperedDecoder

logger = logging.getLogger(__name__)

CACHE_SHARE = 0.8
"""Share of the free memory that key-value slabs may take on a GPU; on a CPU, which others use too, half of that."""


def model_engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_rows: int,
    share: bool = False,
    temperature: float = 1.0,
) -> ResidentEngine:
    """An engine that rolls out one model alone.

    Args:
        model: A causal LM.
        tokenizer: Its tokenizer.
        batch_rows: Rows that roll out together; fewer do where the key-value slabs of so many do not fit.
        share: Whether the engine may take the model over; otherwise it works on a copy.
        temperature: Of sampling; 0 takes the most likely token.
    """
    spec = resolve_pair(model, None, tokenizer, None)
    for note in spec.notes:
        logger.info("%s", note)
    own = model if share else copy.deepcopy(model)
    if temperature == 1:
        decoder = HFDecoder(own, spec.vocab_size)
    else:
        decoder = TemperedDecoder(own, spec.vocab_size, temperature)
    return ResidentEngine(
        decoder,
        None,
        spec.stop_token_ids,
        max_batch_rows=batch_rows,
        kv_budget_bytes=_cache_budget(decoder.device),
    )


def _cache_budget(device: torch.device) -> int:
    """Bytes that key-value slabs may take now."""
    if device.type == "cuda":
        return int(CACHE_SHARE * torch.cuda.mem_get_info(device)[0])
    return int(CACHE_SHARE / 2 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
