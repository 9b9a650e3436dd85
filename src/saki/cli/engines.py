"""Engines for commands that do not train."""

from __future__ import annotations

import copy
import logging
import os
from contextlib import suppress
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from saki.cli.console import pick_device, pick_dtype
from saki.config.commands import RolloutArguments
from saki.config.probe_arguments import ProbeBuildArguments
from saki.config.sources import first_rows, model_path, prompt_rows
from saki.data import RenderedPrompts, render_prompts
from saki.models import ModelPair, load_pair, resolve_pair
from saki.rollout import HFDecoder, ResidentEngine, TemperedDecoder

logger = logging.getLogger(__name__)

CACHE_SHARE = 0.8
"""Share of the free memory that key-value slabs may take on a GPU; on a CPU, which others use too, half of that."""


def load_rollout_inputs(
    args: RolloutArguments | ProbeBuildArguments,
) -> tuple[ModelPair, RenderedPrompts]:
    """The pair and the rendered prompts that a command rolls out; prompts are found before any model is loaded."""
    rows = prompt_rows(args.dataset, args.dataset_split, args.seed)
    pair = load_pair(
        model_path(args.model),
        model_path(args.teacher_model),
        student_dtype=pick_dtype(args.dtype),
        teacher_dtype=args.teacher_dtype if args.dtype != "float64" else torch.float64,
        device=pick_device(args.device),
        student_revision=args.revision,
        trust_remote_code=args.trust_remote_code,
    )
    return pair, render_prompts(first_rows(rows, args.limit), pair.tokenizer, max_prompt_length=args.max_prompt_length)


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
    return int(CACHE_SHARE / 2 * available_memory())


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that this machine can give without swapping, files that it has cached counted as free.

    All of its memory where the system does not say.
    """
    with suppress(OSError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
