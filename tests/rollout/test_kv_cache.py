"""Slabs against plain forwards: ragged rows, roll-backs, dropped rows, any chunking."""

from __future__ import annotations

import copy

import pytest
import torch

from saki.models import tiny_llama, tiny_qwen3
from saki.rollout import HFDecoder

VOCAB, SLOTS = 19, 40


@torch.no_grad()
def plain(model, tokens):
    return model(input_ids=torch.tensor([tokens])).logits[0, -1]


@pytest.mark.parametrize("family", [tiny_qwen3, tiny_llama])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 0.2)])
def test_thirty_rounds_of_commits_and_rollbacks(family, dtype, tolerance):
    model = family(VOCAB, seed=3, dtype=dtype, scale=0.3)
    decoder = HFDecoder(copy.deepcopy(model), VOCAB)
    generator = torch.Generator().manual_seed(0)

    def draw(high, shape, low=0):
        return torch.randint(low, high, shape, generator=generator)

    rows = 3
    texts = [draw(VOCAB, (length,)).tolist() for length in (1, 4, 7)]
    cache = decoder.new_cache(rows, SLOTS)
    starts = torch.zeros(rows, dtype=torch.long)
    width = max(map(len, texts))
    padded = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    decoder.forward(padded, starts, cache, width, 1)
    starts = torch.tensor([len(text) for text in texts])
    for _ in range(30):
        block = draw(VOCAB, (rows, 4))
        logits = decoder.forward(block, starts, cache, int(starts.max()) + 4, 4)
        for row, text in enumerate(texts):
            for i in range(4):
                expected = plain(model, text + block[row, : i + 1].tolist())
                assert torch.allclose(logits[row, i], expected, atol=tolerance), (row, i)
        # Keep a random part of the block, or fall back further, but never below one token.
        change = draw(5, (rows,), low=-3)
        for row, text in enumerate(texts):
            kept = max(1, min(len(text) + int(change[row]), SLOTS - 5))
            texts[row] = (text + block[row].tolist())[:kept]
        starts = torch.tensor([len(text) for text in texts])


def test_dropped_rows_leave_the_others_as_they_were():
    model = tiny_qwen3(VOCAB, seed=3, dtype=torch.float64, scale=0.3)
    decoder = HFDecoder(copy.deepcopy(model), VOCAB)
    cache = decoder.new_cache(3, 8)
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    decoder.forward(tokens, torch.zeros(3, dtype=torch.long), cache, 3, 1)
    size = cache.num_bytes
    cache.keep_rows(torch.tensor([2, 0]))
    assert cache.num_bytes == size * 2 // 3
    logits = decoder.forward(torch.tensor([[10], [11]]), torch.tensor([3, 3]), cache, 4, 1)
    assert torch.allclose(logits[0, 0], plain(model, [7, 8, 9, 10]), atol=1e-9)
    assert torch.allclose(logits[1, 0], plain(model, [1, 2, 3, 11]), atol=1e-9)
