"""Scoring in pieces: logits within their budget, and the same scores for any budget."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from saki.rollout import HFDecoder, ResidentEngine, scoring
from saki.types import Prompt, RolloutRequest
from tests.tiny import VOCAB, tiny_pair


def test_logits_stay_within_their_budget_and_the_budget_changes_nothing(monkeypatch):
    student, teacher = tiny_pair(torch.float64)
    engine = ResidentEngine(HFDecoder(student, VOCAB), HFDecoder(teacher, VOCAB), [1])
    prompts = [Prompt(0, (2, 3, 4)), Prompt(1, (5,))]
    batch = engine.generate(prompts, RolloutRequest(seed=1, max_completion_length=12, num_generations=2))
    whole = engine.score(batch)

    decoder = engine._teacher
    forward, sizes = decoder.forward, []

    def watched(*args):
        logits = forward(*args)
        sizes.append(logits.numel() * 8)
        return logits

    monkeypatch.setattr(decoder, "forward", watched)
    budget = 3 * len(batch) * VOCAB * 8  # three positions
    monkeypatch.setitem(scoring.LOGITS_BUDGET, "cpu", budget)
    pieces = engine.score(batch)
    assert len(sizes) > 3
    assert max(sizes) == budget
    mask = batch.response_mask
    assert torch.allclose(pieces.logprobs[mask], whole.logprobs[mask], atol=1e-12)
    assert torch.equal(pieces.mode_ids, whole.mode_ids)


@pytest.mark.parametrize(
    ("device", "rows", "positions"), [("cuda", 64, 13), ("cuda", 16, 55), ("cpu", 8, 27), ("meta", 8, 27)]
)
def test_a_large_vocabulary_is_scored_in_pieces_worth_a_forward(device, rows, positions):
    """Qwen3's vocabulary: one position a forward would make scoring as serial as decoding."""
    decoder = SimpleNamespace(device=torch.device(device), dtype=torch.bfloat16, vocab_size=151_669)
    assert scoring.chunk_of_positions(decoder, rows) == positions


def test_scoring_keeps_to_the_budget_of_the_slabs(monkeypatch):
    student, teacher = tiny_pair(torch.float64)
    prompts = [Prompt(0, (2, 3, 4)), Prompt(1, (5,))]
    asked = RolloutRequest(seed=1, max_completion_length=12, num_generations=4)
    whole = ResidentEngine(HFDecoder(student, VOCAB), HFDecoder(teacher, VOCAB), [1])
    batch = whole.generate(prompts, asked)
    expected = whole.score(batch)
    longest = int((batch.prompt_mask.sum(dim=1) + batch.lengths).max())
    whole._kv_budget_bytes = 3 * whole._teacher.cache_bytes(longest)
    new_cache, rows = whole._teacher.new_cache, []
    monkeypatch.setattr(
        whole._teacher, "new_cache", lambda num, slots: rows.append((num, slots)) or new_cache(num, slots)
    )
    scores = whole.score(batch)
    assert [num for num, slots in rows if slots > 1] == [3, 3, 2]
    assert torch.allclose(scores.logprobs, expected.logprobs, atol=1e-12, equal_nan=True)
