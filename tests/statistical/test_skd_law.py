"""Whole sequences of speculative knowledge distillation come with their enumerated probabilities.

Overall false-alarm rate of this file: 1e-4 (ALPHA, split evenly over the cases; sequential looks within a case).
"""

from __future__ import annotations

import pytest
import torch

from saki.functional import request_seed
from saki.models import TableLM
from saki.rollout import ResidentEngine, TableDecoder
from saki.types import Prompt, RolloutRequest
from tests.statistical import law

ALPHA = 1e-4
VOCAB, LENGTH, STOP, PROMPT = 4, 3, 2, (0, 1)
CASES = [(block, top_k) for block in (1, 3) for top_k in (1, 2)]


def tables():
    return TableLM(VOCAB, 2, seed=10, use_parity=True), TableLM(VOCAB, 2, seed=20, use_parity=True)


def draw_from(pair, block_size, top_k):
    engine = ResidentEngine(*map(TableDecoder, pair), [STOP], max_batch_rows=2000)
    request = RolloutRequest(
        seed=request_seed(3, "probe", 0),
        max_completion_length=LENGTH,
        behavior="skd",
        top_k=top_k,
        block_size=block_size,
    )

    def draw(begin, end):
        batch = engine.generate([Prompt(4, PROMPT, sample_indices=tuple(range(begin, end)))], request)
        return [tuple(batch.completion_token_ids(row)) for row in range(len(batch))]

    return draw


def expected(pair, top_k):
    def probabilities(table, tokens):
        with torch.no_grad():
            return torch.softmax(table.logits(torch.tensor([tokens]))[0, -1], dim=-1).numpy()

    def behavior(tokens):
        return law.skd_law(probabilities(pair[0], tokens), probabilities(pair[1], tokens), top_k)

    odds = law.enumerate_behavior(behavior, PROMPT, LENGTH, {STOP})
    assert sum(odds.values()) == pytest.approx(1.0)
    return odds


@pytest.mark.parametrize(("block_size", "top_k"), CASES)
def test_law_of_whole_sequences(block_size, top_k):
    pair = tables()
    rejected, size = law.sequential_chi_square(
        draw_from(pair, block_size, top_k), expected(pair, top_k), ALPHA / len(CASES), num_looks=4
    )
    assert not rejected, f"the law was rejected at {size} samples"


def test_the_test_can_fail():
    pair = tables()
    rejected, size = law.sequential_chi_square(
        draw_from(pair, 3, 2), expected(pair, 1), ALPHA / len(CASES), num_looks=4
    )
    assert rejected
    assert size <= 4000
