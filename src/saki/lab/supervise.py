"""Supervised training of one embedded model by its recipe."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as nnf
from transformers import Qwen3Config, Qwen3ForCausalLM

from saki.lab.corpus import IGNORED_LABEL, encode_rows, training_texts
from saki.lab.recipes import ModelShape, Phase, Recipe
from saki.lab.tokenizer import EOS_ID, MAX_LENGTH, PAD_ID, VOCABULARY

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_INITIAL_STD = 0.05  # the usual 0.02 is too small for so narrow a model: it learns at half the pace
_CHUNKS_PER_BATCH = 4  # rows of like length go through the model together, which saves a third of the padding

Advance = Callable[[float], None]
"""Called after every optimiser step with the step's loss, in nats a completion token."""


def new_model(shape: ModelShape, generator: torch.Generator) -> Qwen3ForCausalLM:
    """Make a freshly initialised Qwen3 decoder; the global random state is left as it was.

    Args:
        shape: Model sizes.
        generator: CPU source of the initial weights.

    Returns:
        The model, in float32 on the CPU.
    """
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.mlp_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        head_dim=shape.head_size,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights from the global state
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, _INITIAL_STD, generator=generator)
            else:
                parameter.fill_(1.0)
    return model


def train(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerFast,
    seed: int = 0,
    advance: Advance | None = None,
    start: Path | None = None,
) -> Qwen3ForCausalLM:
    """Train a model by its recipe; the loss is cross-entropy on completion tokens, end-of-sequence included.

    Args:
        recipe: What to train and how.
        tokenizer: The embedded pair's tokenizer.
        seed: Seed of the weights and of the corpus. The same seed gives the same weights bit for bit on one kind
            of machine with one number of threads and one version of torch.
        advance: Called after every step.
        start: Folder of the saved model that ``recipe.starts_from`` names; None for fresh weights.

    Returns:
        The trained model in evaluation mode, float32.

    Raises:
        ValueError: If the recipe starts from another model and ``start`` is None.
    """
    if recipe.starts_from and start is None:
        raise ValueError(f"{recipe.name} starts from {recipe.starts_from}, got no folder of it; pass start")
    if start is None:
        model = new_model(recipe.shape, torch.Generator().manual_seed(seed)).train()
    else:
        model = Qwen3ForCausalLM.from_pretrained(start, dtype=torch.float32).train()
    for index, phase in enumerate(recipe.phases):
        rng = random.Random(f"saki.lab {recipe.name} phase {index} seed {seed}")
        _train_phase(model, recipe, phase, tokenizer, rng, advance)
    return model.eval()


def _train_phase(
    model: Qwen3ForCausalLM,
    recipe: Recipe,
    phase: Phase,
    tokenizer: PreTrainedTokenizerFast,
    rng: random.Random,
    advance: Advance | None,
) -> None:
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=phase.learning_rate, betas=recipe.adam_betas)
    texts = training_texts(rng, phase.slip_share, phase.slip_rate, phase.habit)
    for step in range(phase.num_taken):
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(phase, step)
        rows = encode_rows(tokenizer, list(islice(texts, recipe.batch_size)))
        loss = _accumulate_gradient(model, rows)
        torch.nn.utils.clip_grad_norm_(parameters, recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if advance is not None:
            advance(loss)


def _learning_rate(phase: Phase, step: int) -> float:
    """Linear warm-up to the peak, then a cosine that reaches 0 just after the last step."""
    warmup = min(phase.num_warmup_steps, phase.num_steps // 4)
    if step < warmup:
        return phase.learning_rate * (step + 1) / warmup
    return phase.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (phase.num_steps - warmup)))


def _accumulate_gradient(model: Qwen3ForCausalLM, rows: list[tuple[list[int], list[int]]]) -> float:
    """Add the gradient of the mean loss over the batch's completion tokens; return that loss in nats."""
    rows = sorted(rows, key=lambda row: len(row[0]))
    num_tokens = sum(label != IGNORED_LABEL for _, labels in rows for label in labels)
    chunk_size = -(-len(rows) // _CHUNKS_PER_BATCH)
    total = 0.0
    for start in range(0, len(rows), chunk_size):
        chunk = rows[start : start + chunk_size]
        width = max(len(ids) for ids, _ in chunk)
        ids = torch.tensor([row + [PAD_ID] * (width - len(row)) for row, _ in chunk])
        labels = torch.tensor([row + [IGNORED_LABEL] * (width - len(row)) for _, row in chunk])
        # Padding is on the right, so causal attention alone keeps it out of sight.
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = (
            nnf.cross_entropy(
                logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
            )
            / num_tokens
        )
        loss.backward()
        total += loss.item()
    return total
