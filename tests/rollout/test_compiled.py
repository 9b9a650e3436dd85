"""Compiled forwards sample what eager ones do, also after new weights and with fewer rows."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.timeout(600)
def test_models_alike_in_depth_and_cache_keep_graphs_of_their_own():
    """Graphs are chosen without looking at the model: its class, settings and shapes must choose for it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    plain |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    graphs = []
    for changed in ({}, {"hidden_size": 32}, {"hidden_act": "gelu"}, {"name_or_path": "/elsewhere"}):
        torch.manual_seed(len(graphs))
        model = Qwen3ForCausalLM(Qwen3Config(**{**plain, **changed})).double()
        found = []
        for compiled in (False, True):
            decoder = HFDecoder(copy.deepcopy(model), VOCAB)
            if compiled:
                decoder.compile()
            cache, starts = decoder.new_cache(2, 16), torch.zeros(2, dtype=torch.long)
            decoder.forward(torch.tensor([[3, 4, 5], [6, 7, 8]]), starts, cache, 3, 1)
            found.append(decoder.forward(torch.tensor([[9], [10]]), starts + 3, cache, 4, 1))
        assert torch.allclose(*found, atol=1e-10)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == [1, 2, 3, 3]  # another model of the first architecture finds its graph made
