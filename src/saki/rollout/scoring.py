"""Scores committed tokens under a model, in chunks of positions so that logits stay small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from saki.functional import normalized_log_probs
from saki.rollout.decoder import Decoder
from saki.rollout.protocol import ScoreResult
from saki.rollout.verifier import modes, take
from saki.types import RolloutBatch, fill_value

LOGITS_BUDGET = {"cpu": 128 * 2**20, "cuda": 512 * 2**20}
"""Bytes that the log-probs of one chunk may take, by the type of the device; others have the CPU's.

It is a constant, and not a share of what is free, so that a model sees the same pieces whatever else a device holds.
With 64 rows and 150,000 ids an accelerator takes 13 positions of each row at once.
"""


def chunk_of_positions(decoder: Decoder, num_rows: int = 1) -> int:
    """Positions whose log-probs fit into the budget, with ``num_rows`` rows at each; at least 1."""
    budget = LOGITS_BUDGET.get(decoder.device.type, LOGITS_BUDGET["cpu"])
    width = max(torch.float32.itemsize, decoder.dtype.itemsize)
    return max(1, budget // (width * num_rows * decoder.vocab_size))


Reader = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]
"""(log-probs [B, c, V], committed ids [B, c], response positions [B, c]) -> values [B, c] by name.

A position outside a row's response may be asked about as well; what is said of it is thrown away.
"""


def read_rows(decoder: Decoder, batch: RolloutBatch, reader: Reader) -> tuple[dict[str, Tensor], int]:
    """Values of a model's next-token laws along a batch's completions; the rows are scored together.

    Args:
        decoder: The model.
        batch: Rows to score.
        reader: What to note of each law.

    Returns:
        [B, T] values on the host by name, NaN (floats) or -1 (ids) outside the response mask, and the number of
        forwards it took.
    """
    device = decoder.device
    prompt_lengths = batch.prompt_mask.sum(dim=1)
    lengths = batch.lengths
    total = int((prompt_lengths + lengths).max())
    num_rows, width = batch.completion_ids.shape
    ids = torch.zeros(num_rows, total, dtype=torch.long)
    for row in range(num_rows):
        sequence = batch.prompt_token_ids(row) + batch.completion_token_ids(row)
        ids[row, : len(sequence)] = torch.tensor(sequence)
    ids = ids.to(device)
    first_response = prompt_lengths.to(device).unsqueeze(1)
    first = int(prompt_lengths.min()) - 1
    chunk = chunk_of_positions(decoder, num_rows)
    cache = decoder.new_cache(num_rows, total)
    found: dict[str, Tensor] = {}
    forwards, begin = 0, 0
    while begin < total - 1:
        # Positions before the first response token need no logits, so they come in one piece.
        end = first if begin < first else min(begin + chunk, total - 1)
        starts = torch.full((num_rows,), begin, dtype=torch.long, device=device)
        wanted = 1 if end <= first else end - begin
        logits = decoder.forward(ids[:, begin:end], starts, cache, end, wanted)
        forwards += 1
        if end > first:
            places = torch.arange(begin + 1, end + 1, device=device) - first_response
            values = reader(normalized_log_probs(logits), ids[:, begin + 1 : end + 1], places.clamp(min=0))
            for name, value in values.items():
                if name not in found:
                    found[name] = value.new_full((num_rows, total), fill_value(value.dtype))
                found[name][:, begin + 1 : end + 1] = value
        begin = end
    index = (prompt_lengths.unsqueeze(1) + torch.arange(width)).clamp(max=total - 1)
    aligned = {name: value.cpu().gather(1, index) for name, value in found.items()}
    return {
        name: value.masked_fill(~batch.response_mask, fill_value(value.dtype)) for name, value in aligned.items()
    }, forwards


def score_rows(decoder: Decoder, batch: RolloutBatch) -> tuple[ScoreResult, int]:
    """Log-probs and modes of a batch's completions.

    Args:
        decoder: The model.
        batch: Rows to score.

    Returns:
        The result on the host, float64, and the number of forwards it took.
    """
    values, forwards = read_rows(decoder, batch, logprob_and_mode)
    if not values:  # nothing but prompts of one token without a response
        nothing = torch.full(batch.completion_ids.shape, torch.nan, dtype=torch.float64)
        return ScoreResult(nothing, torch.full_like(batch.completion_ids, -1), nothing), forwards
    return ScoreResult(**values), forwards


def logprob_and_mode(log_probs: Tensor, ids: Tensor, positions: Tensor | None = None) -> dict[str, Tensor]:
    """Fields of a :class:`ScoreResult` from log-probs [..., V] and committed ids [...]; a :data:`Reader`."""
    mode_ids = modes(log_probs)
    return {
        "logprobs": take(log_probs, ids),
        "mode_ids": mode_ids,
        "mode_logprobs": take(log_probs, mode_ids),
    }


def with_teacher_scores(batch: RolloutBatch, scores: ScoreResult) -> RolloutBatch:
    """A student-only rollout with the teacher's scores of it filled in."""
    return replace(
        batch,
        teacher_logprobs=scores.logprobs,
        teacher_mode_ids=scores.mode_ids,
        proposal_teacher_logprobs=scores.logprobs,
        mode_teacher_logprobs=scores.mode_logprobs,
    )


def join_scores(parts: list[ScoreResult], like: Tensor) -> ScoreResult:
    """Concatenate the scores of consecutive groups of rows, log-probs in the dtype of ``like``."""
    return ScoreResult(
        logprobs=torch.cat([part.logprobs for part in parts]).to(like.dtype),
        mode_ids=torch.cat([part.mode_ids for part in parts]),
        mode_logprobs=torch.cat([part.mode_logprobs for part in parts]).to(like.dtype),
    )
