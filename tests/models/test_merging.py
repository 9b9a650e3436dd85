import copy
import sys

import pytest
import torch
from torch import nn

from saki.models import UnmergeableAdapterError, plain_state, tiny_llama, tiny_qwen3

peft = pytest.importorskip("peft")

# peft reads a property of the model that transformers is renaming.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")

IDS = torch.tensor([[1, 5, 9, 2, 7]])


def _lora(model, **options):
    given = {"r": 3, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"], **options}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **given)).eval()
    generator = torch.Generator().manual_seed(7)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return wrapped


def _check_equal(wrapped, plain):
    """The plain model with the yielded state computes what the wrapped one does, which is left bit-equal."""
    before = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    state = dict(plain_state(wrapped))
    plain.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(plain(IDS).logits, wrapped(IDS).logits, rtol=0.0, atol=1e-10)
    after = wrapped.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return state


def _exact_norms(model):
    """The library's norms round to float32, which would hide differences below 1e-7."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, norm)
    return model


def _double(build=tiny_qwen3, seed=0):
    model = _exact_norms(build(vocab_size=20, dtype=torch.float64, seed=seed))
    model.set_attn_implementation("sdpa")
    return model


@pytest.mark.parametrize("build", [tiny_qwen3, tiny_llama])
def test_merged_state_equals_the_adapted_model(build):
    state = _check_equal(_lora(_double(build)), _double(build, seed=9))
    assert set(state) == set(_double(build).state_dict())


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["embed_tokens", "k_proj"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"use_rslora": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ],
)
def test_kinds_of_lora(options):
    _check_equal(_lora(_double(), **options), _double(seed=9))


def test_lora_bias_is_merged():
    def build():
        config = copy.deepcopy(tiny_llama(vocab_size=20).config)
        config.attention_bias = True
        return type(tiny_llama())(config).double().eval()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        base, other = _exact_norms(build()), _exact_norms(build())
    _check_equal(_lora(base, target_modules=["q_proj"], lora_bias=True), other)


def test_several_active_adapters_add_up_and_switched_off_ones_do_not_count():
    model = _lora(_double())
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"]))
    for name, parameter in model.named_parameters():
        if ".second." in name:
            parameter.data.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    model.base_model.set_adapter(["default", "second"])
    _check_equal(model, _double(seed=9))
    with model.disable_adapter():
        state = dict(plain_state(model))
    assert all(torch.equal(state[name], tensor) for name, tensor in _double().state_dict().items())


def test_adapter_merged_in_place_is_not_added_twice():
    model = _lora(_double())
    expected = dict(plain_state(model))
    model.merge_adapter()
    merged = dict(plain_state(model))
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor, rtol=0.0, atol=1e-12)


def test_small_changes_survive_a_bfloat16_base():
    model = _lora(tiny_qwen3(vocab_size=20, dtype=torch.bfloat16), target_modules=["q_proj"])
    state = dict(plain_state(model))
    assert state["model.layers.0.self_attn.q_proj.weight"].dtype == torch.float32
    assert state["model.layers.0.self_attn.k_proj.weight"].dtype == torch.bfloat16


def test_a_plain_model_yields_its_own_tensors_without_peft(monkeypatch):
    monkeypatch.delitem(sys.modules, "peft")
    model = tiny_qwen3(vocab_size=20)
    state = dict(plain_state(model))
    assert state.keys() == model.state_dict().keys()
    assert all(state[name].data_ptr() == tensor.data_ptr() for name, tensor in model.state_dict().items())
    assert not any(tensor.requires_grad for tensor in state.values())


def test_tied_weights_and_persistent_buffers_come_once():
    model = nn.Module()
    model.embed, model.head, model.norm = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False), nn.BatchNorm1d(3)
    model.head.weight = model.embed.weight
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    names = [name for name, _ in plain_state(model)]
    assert sorted(names) == sorted(set(model.state_dict()) - {"head.weight"})


def _tied():
    config = copy.deepcopy(tiny_qwen3(vocab_size=20).config)
    config.tie_word_embeddings = True
    return type(tiny_qwen3())(config).eval()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "options", [{"target_modules": ["embed_tokens"]}, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}]
)
def test_adapters_that_break_a_tie_are_refused(options):
    with pytest.raises(UnmergeableAdapterError, match=r"tied to 'model\.embed_tokens\.weight'"):
        plain_state(_lora(_tied(), **options))


def test_tied_model_with_adapters_elsewhere_is_merged():
    state = dict(plain_state(_lora(_tied(), target_modules=["q_proj"])))
    assert "model.embed_tokens.weight" in state
    assert "lm_head.weight" not in state


def test_dora_and_other_adapters_are_refused():
    with pytest.raises(UnmergeableAdapterError, match="DoRA"):
        plain_state(_lora(_double(), use_dora=True))
    other = peft.get_peft_model(_double(), peft.IA3Config(task_type="CAUSAL_LM"))
    with pytest.raises(UnmergeableAdapterError, match="plain LoRA"):
        plain_state(other)
    tokens = _lora(_double(), target_modules=["q_proj"], trainable_token_indices=[1, 2])
    with pytest.raises(UnmergeableAdapterError, match="TrainableTokens"):
        plain_state(tokens)
