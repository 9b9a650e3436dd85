"""Compiled forwards sample what eager ones do, also after new weights and with fewer rows."""

from __future__ import annotations

import pytest
import torch

from saki.models import tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine
from saki.types import Prompt, RolloutRequest

VOCAB, STOPS = 23, (1, 2)
PROMPTS = [Prompt(7, (3, 4, 5, 6, 7)), Prompt(9, (6,)), Prompt(11, (3, 8, 9, 10, 11, 12, 13))]


def engine(compiled):
    pair = (tiny_qwen3(VOCAB, seed=seed, dtype=torch.float64, scale=0.3) for seed in (1, 2))
    return ResidentEngine(*(HFDecoder(model, VOCAB) for model in pair), STOPS, compiled=compiled, max_batch_rows=4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own, at its import
@pytest.mark.timeout(600)
def test_compiled_forwards_sample_the_same_tokens():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled = engine(False), engine(True)
    fresh = tiny_qwen3(VOCAB, seed=9, dtype=torch.float64, scale=0.3)
    for step, radius in enumerate((0.2, 0.0, 0.2)):
        asked = RolloutRequest(seed=step, max_completion_length=12, num_generations=4, trust_region_radius=radius)
        a, b = eager.generate(PROMPTS, asked), compiled.generate(PROMPTS, asked)
        assert torch.equal(a.completion_ids, b.completion_ids)
        assert torch.equal(a.correction_mask, b.correction_mask)
        assert torch.allclose(a.student_logprobs, b.student_logprobs, atol=1e-9, equal_nan=True)
        weights = dict(HFDecoder(fresh, VOCAB).named_tensors())
        for one in (eager, compiled):
            one.sync_student(weights.items(), step + 1)
    # One token or several, one row or several: two graphs of the student and four of the teacher serve all lengths.
    assert 3 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6
