"""Scores committed tokens under a model, in chunks of positions so that logits stay small."""

from __future__ import annotations

import torch
from torch import Tensor

from saki.functional import normalized_log_probs
from saki.rollout.decoder import Decoder
from saki.rollout.protocol import ScoreResult
from saki.types import RolloutBatch

LOGITS_BUDGET = 64 * 2**20
"""Bytes that the float64 log-probs of one chunk may take."""


def score_rows(decoder: Decoder, batch: RolloutBatch) -> tuple[ScoreResult, int]:
    """Log-probs and modes of a batch's completions; the rows are scored together.

    Args:
        decoder: The model.
        batch: Rows to score.

    Returns:
        The result on the host, float64, and the number of forwards it took.
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
    first = int(prompt_lengths.min()) - 1
    chunk = max(1, LOGITS_BUDGET // (8 * num_rows * decoder.vocab_size))
    cache = decoder.new_cache(num_rows, total)
    logprobs = torch.full((num_rows, total), torch.nan, dtype=torch.float64, device=device)
    modes = torch.full((num_rows, total), -1, dtype=torch.long, device=device)
    forwards, begin = 0, 0
    while begin < total - 1:
        # Positions before the first response token need no logits, so they come in one piece.
        end = first if begin < first else min(begin + chunk, total - 1)
        starts = torch.full((num_rows,), begin, dtype=torch.long, device=device)
        wanted = 1 if end <= first else end - begin
        logits = decoder.forward(ids[:, begin:end], starts, cache, end, wanted)
        forwards += 1
        if end > first:
            log_probs = normalized_log_probs(logits)
            targets = ids[:, begin + 1 : end + 1].unsqueeze(-1)
            logprobs[:, begin + 1 : end + 1] = log_probs.gather(-1, targets).squeeze(-1)
            modes[:, begin + 1 : end + 1] = log_probs.argmax(dim=-1)
        begin = end
    index = (prompt_lengths.unsqueeze(1) + torch.arange(width)).clamp(max=total - 1)
    logprobs, modes = logprobs.cpu().gather(1, index), modes.cpu().gather(1, index)
    return ScoreResult(
        logprobs=torch.where(batch.response_mask, logprobs, torch.nan),
        mode_ids=torch.where(batch.response_mask, modes, -1),
    ), forwards


def join_scores(parts: list[ScoreResult], like: Tensor) -> ScoreResult:
    """Concatenate the scores of consecutive groups of rows, log-probs in the dtype of ``like``."""
    return ScoreResult(
        logprobs=torch.cat([part.logprobs for part in parts]).to(like.dtype),
        mode_ids=torch.cat([part.mode_ids for part in parts]),
    )
