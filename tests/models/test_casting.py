"""Weights in another dtype: what a checkpoint loaded in that dtype would hold."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from saki.models import cast_weights, load_causal_lm, tiny_qwen3

MOE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}


def model_of(kind):
    if kind == "qwen3":
        return tiny_qwen3(32, seed=1)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **MOE))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("qwen3", torch.bfloat16), ("qwen3", torch.float64), ("glm4_moe", torch.bfloat16), ("glm4_moe", torch.float16)],
)
def test_dtypes_and_values_are_those_of_a_checkpoint_loaded_in_that_dtype(kind, dtype, tmp_path):
    model = model_of(kind)
    model.save_pretrained(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
    cast_weights(model, dtype)
    expected = dict([*loaded.named_parameters(), *loaded.named_buffers()])
    found = dict([*model.named_parameters(), *model.named_buffers()])
    assert found.keys() == expected.keys()
    assert {name for name in found if "inv_freq" in name}
    for name, value in found.items():
        assert value.dtype == expected[name].dtype, name
        assert torch.equal(value, expected[name]), name
    if kind == "glm4_moe":
        assert found["model.layers.1.mlp.gate.e_score_correction_bias"].dtype == torch.float32


@pytest.mark.parametrize(("dtype", "kept"), [(torch.float16, True), (torch.bfloat16, False)])
def test_what_overflows_in_half_precision_stays_where_the_model_says_so(dtype, kept):
    model = tiny_qwen3(32, seed=1)
    model._keep_in_fp32_modules = {"input_layernorm"}
    cast_weights(model, dtype)
    assert (model.model.layers[0].input_layernorm.weight.dtype == torch.float32) == kept
    assert model.model.norm.weight.dtype == dtype


def test_tied_weights_stay_tied():
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **MOE, tie_word_embeddings=True))
    cast_weights(model, torch.bfloat16)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.dtype == torch.bfloat16


def test_far_positions_keep_their_law_under_bfloat16():
    """Frequencies rounded to bfloat16 are off by radians after a thousand positions."""
    shape = {**MOE, "num_hidden_layers": 4, "head_dim": 128, "hidden_size": 128, "max_position_embeddings": 4096}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **shape, initializer_range=0.15)).eval()
    ids = torch.randint(0, 32, (1, 2048), generator=torch.Generator().manual_seed(0))
    cast, rounded = copy.deepcopy(model), copy.deepcopy(model).to(torch.bfloat16)
    cast_weights(cast, torch.bfloat16)
    with torch.no_grad():
        law, near, far = (one(input_ids=ids).logits[0, 1024:].float().log_softmax(-1) for one in (model, cast, rounded))
    kl = [float((law.exp() * (law - other)).sum(-1).mean()) for other in (near, far)]
    assert kl[0] < 1e-3
    assert kl[1] > 5 * kl[0]


def test_an_adapter_loaded_in_bfloat16_keeps_its_frequencies_and_can_be_trained(tmp_path):
    peft = pytest.importorskip("peft")
    tiny_qwen3(32, seed=1).save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], base_model_name_or_path=str(tmp_path / "base"))
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    model = load_causal_lm(tmp_path / "adapter", dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert all(parameter.requires_grad for parameter in model.parameters())
