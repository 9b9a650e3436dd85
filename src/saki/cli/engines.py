"""Engines for commands that do not train."""

from __future__ import annotations

import copy
import logging

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from saki.models import resolve_pair
from saki.rollout import HFDecoder, ResidentEngine

logger = logging.getLogger(__name__)


def model_engine(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, batch_rows: int, share: bool = False
) -> ResidentEngine:
    """An engine that rolls out one model alone.

    Args:
        model: A causal LM.
        tokenizer: Its tokenizer.
        batch_rows: Rows that roll out together.
        share: Whether the engine may take the model over; otherwise it works on a copy.
    """
    spec = resolve_pair(model, None, tokenizer, None)
    for note in spec.notes:
        logger.info("%s", note)
    own = model if share else copy.deepcopy(model)
    return ResidentEngine(HFDecoder(own, spec.vocab_size), None, spec.stop_token_ids, max_batch_rows=batch_rows)
