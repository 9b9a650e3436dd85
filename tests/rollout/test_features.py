"""Hidden states of whole sequences: what a plain forward has, without a mask of queries by keys or a cache."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from saki.rollout import HFDecoder, attention

VOCAB, LENGTH = 40, 300
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7, "use_sliding_window": True}


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for value in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(value, torch.Tensor):
                self.seen = max(self.seen, value.untyped_storage().nbytes() // value.element_size())
        return made


@pytest.mark.parametrize("grouped", [{"cpu"}, set()])
@pytest.mark.parametrize(("kind", "options"), [("llama", {}), ("qwen3", {}), ("qwen3", WINDOWS), ("gpt2", {})])
def test_features_are_the_last_hidden_states(kind, options, grouped, monkeypatch):
    monkeypatch.setattr(attention, "GROUPED_DEVICES", grouped)
    torch.manual_seed(0)
    shape = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4} if kind == "gpt2" else SHAPE
    config = AutoConfig.for_model(kind, **shape, **options, initializer_range=0.3)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    ids = torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    decoder = HFDecoder(model, VOCAB)
    with Largest() as largest:
        found = decoder.features(ids)
    assert torch.allclose(found, expected, atol=1e-10)
    padded = decoder.features(torch.cat([ids[:, :20], torch.zeros(2, 9, dtype=torch.long)], dim=1))
    assert torch.allclose(padded[:, :20], expected[:, :20], atol=1e-10)
    squares = 2 * LENGTH * LENGTH
    assert (largest.seen < squares) == (options == {})
