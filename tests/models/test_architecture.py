import inspect

import pytest
import torch
import transformers
from transformers import AttentionInterface, AutoConfig
from transformers.cache_utils import Cache

from saki.models import UnsupportedArchitectureError, check_architecture

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 8}
WINDOW = {"sliding_window": 4}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FULL, SLIDING = "full_attention", "sliding_attention"

SUPPORTED = {
    "llama": (HEAD, (None,) * 4, False),
    "qwen2": ({"use_sliding_window": True, "max_window_layers": 2, **WINDOW}, (None, None, 4, 4), True),
    "qwen3": ({**HEAD, **WINDOW, "use_sliding_window": False}, (None,) * 4, True),
    "qwen3_moe": ({**HEAD, **MOE}, (None,) * 4, False),
    "mistral": ({**HEAD, **WINDOW}, (4,) * 4, False),
    "gemma2": ({**HEAD, **WINDOW, "query_pre_attn_scalar": 8}, (4, None, 4, None), True),
    "olmo3": ({**WINDOW, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]}, (4, 4, 4, None), True),
    "gpt_neox": ({}, (None,) * 4, False),
}


def _config(model_type, extra):
    return AutoConfig.for_model(model_type, **{**SIZES, **extra})


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_windows_and_mask_form_are_reported(model_type):
    extra, windows, takes_mapping = SUPPORTED[model_type]
    report = check_architecture(_config(model_type, extra), supports_softcap=True)
    assert report.windows == windows
    assert report.takes_mask_mapping is takes_mapping
    assert report.num_layers == 4
    assert report.verified
    assert report.layer_types == tuple(FULL if window is None else SLIDING for window in windows)


REFUSED = {
    "mamba": "linear attention layers|recurrent",
    "rwkv": "recurrent state",
    "qwen3_next": "linear attention layers",
    "jamba": "linear attention layers",
    "recurrent_gemma": "recurrent|linear attention",
    "lfm2": None,
    "t5": "an encoder or cross-attention",
    "bart": "an encoder or cross-attention",
    "bert": "an encoder architecture",
    "llama4_text": "chunked attention layers",
    "gpt_oss": "attention",
    "mimo_v2_flash": "attention",
    "deepseek_v3": "latent attention",
    "gemma3n_text": "share keys and values|differing shapes",
    "gemma3": "multimodal wrapper",
    "bloom": "attention code of its own",
    "falcon": "attention code of its own|position biases",
    "doge": "mask computed from the values",
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_other_architectures_are_refused_by_name(model_type):
    config = AutoConfig.for_model(model_type)
    if model_type == "lfm2":
        config.layer_types = ["conv"] * (config.num_hidden_layers - 1) + [FULL]
    with pytest.raises(UnsupportedArchitectureError, match=REFUSED[model_type]) as caught:
        check_architecture(config, supports_softcap=True)
    assert repr(model_type) in str(caught.value)


def test_cross_attention_is_refused():
    config = AutoConfig.for_model("gpt2", add_cross_attention=True)
    with pytest.raises(UnsupportedArchitectureError, match="cross-attention"):
        check_architecture(config)


def test_soft_caps_need_an_attention_that_applies_them():
    config = _config("gemma2", {**HEAD, **WINDOW})
    with pytest.raises(UnsupportedArchitectureError, match=r"soft cap of 50\.0"):
        check_architecture(config)
    report = check_architecture(config, supports_softcap=True)
    assert (report.attention_softcap, report.final_logit_softcap) == (50.0, 30.0)
    assert not report.logits_are_plain


def test_logit_factors_are_reported():
    assert check_architecture(_config("cohere", {})).logit_factors == (("logit_scale", 0.0625),)
    assert check_architecture(_config("granite", {"logits_scaling": 8.0})).logit_factors == (("logits_scaling", 8.0),)
    assert check_architecture(_config("llama", HEAD)).logits_are_plain


def test_rotary_frequencies_that_change_with_length_are_reported():
    def limit(rope):
        return check_architecture(_config("llama", {**HEAD, "rope_parameters": rope})).max_static_positions

    base = {"rope_theta": 10000.0}
    assert limit({**base, "rope_type": "default"}) is None
    assert limit({**base, "rope_type": "linear", "factor": 2.0}) is None
    assert limit({**base, "rope_type": "dynamic", "factor": 2.0}) == 64
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    assert limit({**base, "rope_type": "longrope", "original_max_position_embeddings": 32, **factors}) == 32


class _SlabCache(Cache):
    """Keys and values at given positions of fixed slabs, as the engine keeps them."""

    def __init__(self, rows, slots):
        super().__init__(layers=[])
        self.rows, self.slots, self.slabs, self.positions = rows, slots, {}, None

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        if layer_idx not in self.slabs:
            shapes = [
                (self.rows, states.shape[1], self.slots, states.shape[3]) for states in (key_states, value_states)
            ]
            self.slabs[layer_idx] = [torch.full(shape, 7.0, dtype=key_states.dtype) for shape in shapes]
        for slab, states in zip(self.slabs[layer_idx], (key_states, value_states), strict=True):
            for row in range(self.rows):
                slab[row][:, self.positions[row]] = states[row]
        return tuple(self.slabs[layer_idx])

    def get_seq_length(self, layer_idx=0):
        return 0


ATTENTION_CALLS = []


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, **kwargs):
    """Softmax attention in full precision with the group of query heads folded into the query axis."""
    ATTENTION_CALLS.append(module)
    rows, heads, queries, width = query.shape
    groups = heads // key.shape[1]
    scores = query.reshape(rows, key.shape[1], groups * queries, width) @ key.transpose(2, 3)
    scores = scores * (width**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.unflatten(2, (groups, queries)) + attention_mask[:, :, None]
    out = torch.softmax(scores, dim=-1).flatten(2, 3) @ value
    return out.reshape(rows, heads, queries, -1).transpose(1, 2).contiguous(), None


@torch.no_grad()
@pytest.mark.parametrize("model_type", SUPPORTED)
def test_slabs_ragged_rows_and_rollback_equal_the_full_forward(model_type):
    """What ``verified`` claims: the report is enough to decode exactly."""
    AttentionInterface.register("saki_test", _attention)
    config = _config(model_type, SUPPORTED[model_type][0])
    report = check_architecture(config, supports_softcap=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config._experts_implementation = "eager"  # grouped kernels have no float64
        model = getattr(transformers, report.model_class)(config).double().eval()
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.3)
    ids = torch.randint(3, 40, (2, 14), generator=torch.Generator().manual_seed(2))
    model.set_attn_implementation("eager")
    full = model(input_ids=ids, use_cache=False).logits
    model.set_attn_implementation("saki_test")
    cache, slots = _SlabCache(2, 18), torch.arange(18)
    argument = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"

    def forward(tokens, positions):
        cache.positions = positions
        masks = {}
        for kind, window in report.distinct_windows().items():
            visible = slots <= positions[:, :, None]
            if window is not None:
                visible &= slots > positions[:, :, None] - window
            masks[kind] = torch.zeros(visible.shape).double().masked_fill(~visible, -1e300)[:, None]
        if report.takes_mask_mapping:
            given = {FULL: masks.get(FULL), SLIDING: masks.get(SLIDING)}
        else:
            (given,) = masks.values()
        return model(
            input_ids=tokens, attention_mask=given, position_ids=positions, use_cache=True, **{argument: cache}
        ).logits

    ATTENTION_CALLS.clear()
    span = torch.arange(14)[None].repeat(2, 1)
    # The library's own attention takes its softmax in float32, so float64 models agree to about 1e-6.
    close = {"rtol": 0.0, "atol": 2e-5}
    torch.testing.assert_close(forward(ids[:, :5], span[:, :5]), full[:, :5], **close)
    speculative = torch.stack([ids[0, 5:8], torch.tensor([9, 9, 9])])
    torch.testing.assert_close(forward(speculative, span[:, 5:8])[0], full[0, 5:8], **close)
    # Row 1 rolls its three tokens back, row 0 goes on.
    tokens, positions = torch.stack([ids[0, 8:11], ids[1, 5:8]]), torch.stack([span[0, 8:11], span[0, 5:8]])
    torch.testing.assert_close(forward(tokens, positions), torch.stack([full[0, 8:11], full[1, 5:8]]), **close)
    assert len(ATTENTION_CALLS) == 3 * report.num_layers
