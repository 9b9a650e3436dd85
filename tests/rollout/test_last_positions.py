"""Completions up to the model's last position: what drafts do beyond it changes nothing."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Phi3Config, Phi3ForCausalLM

from saki.rollout import HFDecoder, ResidentEngine
from saki.types import Prompt, RolloutRequest

LIMIT, VOCAB = 32, 40
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": LIMIT,
    "factor": 4.0,
}


def learned_positions(seed):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LIMIT, n_embd=16, n_layer=2, n_head=2, initializer_range=0.6, eos_token_id=1
    )
    return GPT2LMHeadModel(config).double().eval()


def frequencies_by_length(seed):
    torch.manual_seed(seed)
    config = Phi3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4 * LIMIT,
        original_max_position_embeddings=LIMIT,
        rope_parameters=ROPE,
        initializer_range=0.6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    return Phi3ForCausalLM(config).double().eval()


@pytest.mark.parametrize("make", [learned_positions, frequencies_by_length])
def test_a_full_row_beside_rows_with_room_has_the_law_of_single_tokens(make):
    """One prompt and its completion fill the model; its neighbours are short, and draft on."""
    prompts = [Prompt(key=index, token_ids=tuple(range(2, 2 + n))) for index, n in enumerate((16, 10, 5, 1))]
    found = []
    for block_size in (1, 8):
        engine = ResidentEngine(HFDecoder(make(0), VOCAB), HFDecoder(make(1), VOCAB), [39], max_batch_rows=8)
        assert engine.max_positions == LIMIT
        request = RolloutRequest(
            seed=3,
            max_completion_length=LIMIT - 16,
            num_generations=4,
            behavior="bridge",
            trust_region_radius=0.3,
            block_size=block_size,
        )
        found.append(engine.generate(prompts, request))
    single, drafted = found
    assert int(drafted.lengths.max()) == LIMIT - 16
    assert torch.equal(single.completion_ids, drafted.completion_ids)
    mask = single.response_mask
    assert torch.allclose(single.student_logprobs[mask], drafted.student_logprobs[mask], atol=1e-10)
