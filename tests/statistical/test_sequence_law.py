"""Every completion of a toy pair comes with its enumerated probability, whatever the block size.

Overall false-alarm rate of this file: 1e-4 (ALPHA, split evenly over the cases; sequential looks within a case, see
``law.sequential_chi_square``). Keys are fixed, so a pass is the same at every run.
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
VOCAB, LENGTH, STOP = 3, 4, 2
CASES = [(block, radius) for block in (1, 2, 3, 8) for radius in (0.02, 0.3)] + [(3, 0.0), (3, 1e-6), (3, 50.0)]
PROMPT = (0, 1)


def tables(seed=0):
    return (
        TableLM(VOCAB, 2, seed=10 + seed, use_parity=True),
        TableLM(VOCAB, 2, seed=20 + seed, sharpness=1.5, use_parity=True),
    )


def next_law(table):
    def probabilities(tokens):
        with torch.no_grad():
            return torch.softmax(table.logits(torch.tensor([tokens]))[0, -1], dim=-1).numpy()

    return probabilities


def drawer(pair, block_size, radius):
    """Completions of samples begin .. end - 1 of one prompt."""
    engine = ResidentEngine(TableDecoder(pair[0]), TableDecoder(pair[1]), [STOP], max_batch_rows=2000)
    request = RolloutRequest(
        seed=request_seed(3, "probe", 0),
        max_completion_length=LENGTH,
        trust_region_radius=radius,
        block_size=block_size,
    )

    def draw(begin, end):
        batch = engine.generate([Prompt(4, PROMPT, sample_indices=tuple(range(begin, end)))], request)
        return [tuple(batch.completion_token_ids(row)) for row in range(len(batch))]

    return draw


def expected_law(pair, radius):
    expected = law.enumerate_law(next_law(pair[0]), next_law(pair[1]), PROMPT, radius, LENGTH, {STOP})
    assert sum(expected.values()) == pytest.approx(1.0)
    return expected


@pytest.mark.parametrize(("block_size", "radius"), CASES)
def test_law_of_whole_sequences(block_size, radius):
    pair = tables()
    rejected, size = law.sequential_chi_square(
        drawer(pair, block_size, radius), expected_law(pair, radius), ALPHA / len(CASES), num_looks=4
    )
    assert not rejected, f"the law was rejected at {size} samples"


def test_the_test_can_fail():
    """Samples at radius 0.1 are told from the law at 0.3: the test has power at the sizes it uses."""
    pair = tables()
    rejected, size = law.sequential_chi_square(
        drawer(pair, 3, 0.1), expected_law(pair, 0.3), ALPHA / len(CASES), num_looks=4
    )
    assert rejected
    assert size <= 4000


def test_correction_rate_is_the_mean_tv():
    """The number of corrections less the sum of TV is a martingale with variance sum TV (1 - TV); five sigma."""
    pair = tables()
    engine = ResidentEngine(TableDecoder(pair[0]), TableDecoder(pair[1]), [STOP], max_batch_rows=2000)
    request = RolloutRequest(seed=9, max_completion_length=LENGTH, trust_region_radius=0.1, num_generations=3000)
    batch = engine.generate([Prompt(4, PROMPT)], request)
    tv = batch.tv[batch.response_mask]
    excess = float(batch.correction_mask.sum() - tv.sum())
    assert abs(excess) < 5 * float((tv * (1 - tv)).sum()) ** 0.5
    assert float(tv.max()) <= (0.1 / 2) ** 0.5
