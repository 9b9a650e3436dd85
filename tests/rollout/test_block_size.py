"""K from the acceptance seen so far: the best by the cost model, learnt from waves, and no change of law."""

from __future__ import annotations

import pytest
import torch

from saki.models import tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine
from saki.rollout.block_size import BlockSizer
from saki.types import Prompt, RolloutRequest


def learn(sizer, acceptance, waves=400, seed=0):
    """Feed waves of 8 rows of a source that keeps each proposal with the given probability."""
    random = torch.Generator().manual_seed(seed)
    widths = []
    for _ in range(waves):
        width = sizer.next(8)
        widths.append(width)
        kept = (torch.rand(8, width, generator=random) < acceptance).long().cumprod(dim=1).sum(dim=1)
        sizer.observe([min(int(count) + 1, width) for count in kept], width)
    return widths


@pytest.mark.parametrize("acceptance", [0.3, 0.8, 0.97])
def test_acceptance_is_learnt(acceptance):
    sizer = BlockSizer(8, 2.0, "cuda")
    learn(sizer, acceptance)
    # A correction in the last place counts as kept, so the estimate lies above, the more the smaller K.
    assert acceptance - 0.03 <= sizer.acceptance <= acceptance + (1 - acceptance) * 0.6


def test_larger_blocks_for_better_drafts_and_heavier_teachers():
    def settled(acceptance, weight, device="cuda"):
        return learn(BlockSizer(16, weight, device), acceptance)[-1]

    assert settled(0.3, 2.0) < settled(0.9, 2.0) < settled(0.99, 2.0)
    assert settled(0.9, 0.5) < settled(0.9, 20.0)
    assert settled(0.9, 2.0, "cpu") <= settled(0.9, 2.0)  # verified tokens are dear where arithmetic is


def test_the_pick_is_the_best_of_all():
    sizer = BlockSizer(12, 1.4, "cpu")
    acceptance = sizer.acceptance

    def rate(size):
        expected = sum(acceptance**kept for kept in range(size))
        return expected / (size * (1 + 8 / 8) + 1.4 * (1 + 8 * size / 8))

    assert sizer.next(8) == max(range(1, 13), key=rate)


def test_tokens_do_not_depend_on_it():
    def run(adaptive):
        pair = (tiny_qwen3(23, seed=seed, dtype=torch.float64, scale=0.3) for seed in (1, 2))
        engine = ResidentEngine(*(HFDecoder(model, 23) for model in pair), (1, 2), adaptive_block_size=adaptive)
        asked = RolloutRequest(seed=1, max_completion_length=30, num_generations=8, trust_region_radius=0.5)
        return engine.generate([Prompt(7, (3, 4, 5)), Prompt(9, (6,))], asked), engine.stats()

    (a, fixed), (b, adapted) = run(False), run(True)
    assert torch.equal(a.completion_ids, b.completion_ids)
    assert torch.equal(a.correction_mask, b.correction_mask)
    assert adapted.waves > fixed.waves  # smaller blocks at this acceptance
    assert adapted.student_forwards < fixed.student_forwards
