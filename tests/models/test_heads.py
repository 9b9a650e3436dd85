"""Logits from hidden states: what the model's own forward gives, whatever follows its base."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from saki.models import LogitHead, mask_padding_ids
from saki.rollout import HFDecoder
from saki.training.policy import PolicyHead

VOCAB = 30
SHAPE = {
    "vocab_size": VOCAB + 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPECIAL = {"cls_token_id": 1, "sep_token_id": 2, "layer_types": ["full_attention"] * 2}
KINDS = {
    "llama": (True, {}),
    "cohere": (False, {}),
    "granite": (False, {"logits_scaling": 4.0}),
    "nanochat": (False, {}),
    "modernbert-decoder": (False, SPECIAL),
}


def model_of(kind):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SHAPE, **KINDS[kind][1]})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


IDS = torch.randint(3, VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_whole_model(kind):
    model = model_of(kind)
    head = LogitHead(model)
    modules = list(model.modules())
    embed = model.lm_head.forward
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        hidden = model.base_model(input_ids=IDS).last_hidden_state
        assert torch.allclose(head(hidden), expected, atol=1e-12)
        assert torch.allclose(head(hidden[1, 2:4]), expected[1, 2:4], atol=1e-12)
        assert not torch.allclose(head(hidden, lambda states: 2 * embed(states)), expected, atol=1e-3)
        assert torch.allclose(model(input_ids=IDS).logits, expected, atol=1e-12)
    assert head.is_plain == KINDS[kind][0]
    assert list(model.modules()) == modules


def test_the_model_is_whole_again_after_an_error():
    model = model_of("cohere")
    modules = list(model.modules())
    with pytest.raises(RuntimeError):
        LogitHead(model)(torch.zeros(3, 5, dtype=torch.float64), model.lm_head.forward)
    assert list(model.modules()) == modules


@pytest.mark.parametrize("kind", KINDS)
def test_policy_and_teacher_see_the_whole_model_a_chunk_at_a_time(kind):
    """Log-probs with gradient from chunks of three tokens, and those of the decoder, against a plain forward."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0]]).bool()
    inputs = {
        "input_ids": IDS,
        "attention_mask": torch.ones_like(IDS),
        "position_ids": torch.arange(7).expand(2, -1),
        "response_mask": mask,
    }
    weights = torch.randn(6, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    model, plain = model_of(kind), model_of(kind)
    most = []

    def reader(logits, which):
        most.append(logits.shape[0])
        return logits.log_softmax(-1)

    found = PolicyHead(model, VOCAB, 3).read(model, model, inputs, reader)
    (found * weights).sum().backward()
    logits = mask_padding_ids(plain(input_ids=IDS).logits, VOCAB)[:, 2:-1][mask]
    expected = logits.log_softmax(-1)
    (expected * weights).sum().backward()
    assert torch.allclose(found, expected, atol=1e-10)
    for (name, value), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(value.grad, other.grad, atol=1e-9), name
    assert max(most) == 3
    decoder = HFDecoder(plain, VOCAB)
    hidden = decoder.features(IDS)
    assert hidden.shape == (2, 7, 32)
    assert torch.allclose(decoder.project(hidden[:, 2:-1][mask]).log_softmax(-1), expected.detach(), atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_no_valid_token_is_no_error(kind):
    model = model_of(kind)
    inputs = {
        "input_ids": IDS,
        "attention_mask": torch.ones_like(IDS),
        "position_ids": torch.arange(7).expand(2, -1),
        "response_mask": torch.zeros(2, 4, dtype=torch.bool),
    }
    found = PolicyHead(model, VOCAB, 3).read(model, model, inputs, lambda logits, _: logits)
    assert found.shape == (0, VOCAB)
    found.sum().backward()
    decoder = HFDecoder(model_of(kind), VOCAB)
    assert decoder.project(decoder.features(IDS)[:, :0].flatten(0, 1)).shape == (0, VOCAB)
