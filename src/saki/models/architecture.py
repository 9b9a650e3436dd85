"""Which decoders the key/value-slab engine can run, and what it must know of each.

The engine stores the keys and values of every layer in slabs, hands each layer the slab of its row, and masks by
position. That is right for a decoder whose layers are causal softmax attention over per-position keys and values, and
wrong without any error for the rest. So each model is checked before anything runs:

==============================  =========================================================================
what                            how it is detected
==============================  =========================================================================
encoder-decoder, cross          ``is_encoder_decoder`` or ``add_cross_attention`` of the config
recurrent, linear, hybrid       a name in ``layer_types`` or ``layers_block_type`` other than full and sliding
                                attention, or ``_is_stateful`` of the model class
chunked attention               ``chunked_attention`` in ``layer_types``, or ``attention_chunk_size``
latent attention (MLA)          ``kv_lora_rank``: keys and values differ in width
shared keys and values          ``num_kv_shared_layers`` or ``kv_sharing_modes``: a layer has no cache of its own
layers of differing shape       ``is_heterogeneous`` of the config
attention sinks and the like    a table of model types, and a class that declares that SDPA cannot express its
                                attention (``_supports_sdpa`` is False) without a logit soft cap as the reason
own attention code              ``_supports_attention_backend`` is False: attention cannot be replaced
encoders run as decoders        transformers has a masked language model for the config (BERT and its kin)
multimodal wrappers             the text config is not the config itself
sliding windows                 handled: reported layer by layer
rotary frequencies that change  handled: ``rope_type`` dynamic and longrope give the length up to which they do not
==============================  =========================================================================
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FULL, SLIDING = "full_attention", "sliding_attention"

_LAYER_NAMES = {"attention": FULL, FULL: FULL, SLIDING: SLIDING}
"""Supported names in ``layer_types``, the older spelling included."""

_REFUSED_TYPES = {
    "bert-generation": "an encoder architecture run as a decoder",
    "deepseek_v4": "attention sinks",
    "diffllama": "differential attention",
    "doge": "an attention mask computed from the values",
    "dory": "several attention calls a layer",
    "flint": "attention sinks",
    "gpt_oss": "attention sinks",
    "granite_swa": "attention sinks",
    "granitemoe_swa": "attention sinks",
    "hrm_text": "layers that run several times a token",
    "hy_v4": "attention sinks",
    "mimo_v2_flash": "attention sinks",
    "moshi": "a depth decoder and masks of its own",
}
"""Model types whose attention is not plain, though no field of the config says so."""

_VERIFIED = """
    afmoe apertus arcee aria_text bitnet cohere cohere2 cohere2_moe ctrl cwm dots1 ernie4_5 ernie4_5_moe exaone4
    exaone_moe flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox granite granitemoe
    granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 jetmoe laguna lfm2 llama mellum
    minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder nanochat nemotron olmo
    olmo2 olmo3 olmoe opt persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3
    solar_open starcoder2 vaultgemma
"""

VERIFIED_TYPES = frozenset(_VERIFIED.split())
"""Model types of which a tiny random model was decoded through key/value slabs, with ragged rows, a rollback, replaced
attention and given masks, and agreed with the full forward at both ends of the supported transformers range."""

_MAPPING_BY_TYPE = re.compile(r"isinstance\([^)]*attention_mask[^)]*,\s*dict\s*\)")


class UnsupportedArchitectureError(ValueError):
    """The engine cannot run this model exactly."""


@dataclass(frozen=True)
class ArchitectureReport:
    """What the engine must know of a supported decoder.

    Attributes:
        model_type: ``config.model_type``.
        model_class: Name of the causal language model class.
        layer_types: One of ``"full_attention"`` and ``"sliding_attention"`` per layer. These are the keys of the
            mask mapping where ``takes_mask_mapping`` is True.
        windows: Per layer the number of visible positions, the query's own included (a query at position i sees
            keys at i - window + 1 .. i), or None where all earlier positions are visible.
        takes_mask_mapping: Whether the forward accepts a dict of ready masks by layer type as ``attention_mask``.
            Where it is False all layers share one window, and one ready 4D mask serves all.
        attention_softcap: c of ``c * tanh(scores / c)`` on the attention scores (before the mask), or None. The
            layers pass it to the attention function as ``softcap``.
        final_logit_softcap: c of ``c * tanh(logits / c)``, or None.
        logit_factors: Names and values of the config's factors on the logits that are not 1. Whether one
            multiplies or divides depends on the model, so take logits from the model's own forward.
        max_static_positions: Longest sequence (tokens, prompt and completion) for which the rotary frequencies stay
            as they are, or None where they always do. Above it the library computes them from the longest row of the
            batch, so that cached keys, and neighbours, would count with other frequencies: keep rollouts below it.
        max_positions: Longest sequence that the model takes (tokens), by the config's positions and by
            ``max_static_positions``, or None where neither limits it.
        verified: Whether decoding through slabs was compared with a full forward for this model type.
    """

    model_type: str
    model_class: str
    layer_types: tuple[str, ...]
    windows: tuple[int | None, ...]
    takes_mask_mapping: bool
    attention_softcap: float | None
    final_logit_softcap: float | None
    logit_factors: tuple[tuple[str, float], ...]
    max_static_positions: int | None
    max_positions: int | None
    verified: bool

    @property
    def num_layers(self) -> int:
        """Layers, each with a key and a value slab."""
        return len(self.layer_types)

    @property
    def logits_are_plain(self) -> bool:
        """True where no scale or cap is on the logits; :class:`LogitHead` looks at the model's modules as well."""
        return self.final_logit_softcap is None and not self.logit_factors

    def distinct_windows(self) -> dict[str, int | None]:
        """The window of each layer type in use: one ready mask is needed for each entry."""
        return dict(zip(self.layer_types, self.windows, strict=True))


def check_architecture(
    config: PretrainedConfig, model_class: type | None = None, *, supports_softcap: bool = False
) -> ArchitectureReport:
    """Check that a decoder can run on key/value slabs, and report what the engine must honour.

    Args:
        config: The model's config.
        model_class: Its causal language model class; by default the library's class for this config. Give it for
            models with code of their own.
        supports_softcap: Whether the caller's attention function applies ``softcap``. Models that need one are
            refused otherwise.

    Returns:
        The report.

    Raises:
        UnsupportedArchitectureError: If a feature of the model does not fit; the message names it.
    """
    name = getattr(config, "model_type", "") or type(config).__name__
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise _refusal(name, "an encoder or cross-attention")
    text_config = config.get_text_config(decoder=True)
    if getattr(text_config, "is_heterogeneous", False):
        raise _refusal(name, "layers of differing shapes")
    layer_types = _layer_types(text_config, name)
    _refuse_by_config(text_config, name)
    if text_config is not config:
        raise _refusal(name, "a multimodal wrapper around its text decoder")
    if model_class is None:
        model_class = _library_class(config, name)
    softcap = _refuse_by_class(config, model_class, name, supports_softcap)
    takes_mapping = bool(_MAPPING_BY_TYPE.search(inspect.getsource(sys.modules[model_class.__module__])))
    windows = tuple(_window(config, name) if kind == SLIDING else None for kind in layer_types)
    if len(set(windows)) > 1 and not takes_mapping:
        raise _refusal(name, "layers of differing windows behind one mask")
    factors = tuple(
        (key, float(value))
        for key in ("logit_scale", "logits_scaling", "lm_head_multiplier")
        if (value := getattr(config, key, None)) is not None and float(value) != 1.0
    )
    static = _max_static_positions(config)
    limits = [limit for limit in (getattr(config, "max_position_embeddings", None), static) if limit]
    return ArchitectureReport(
        model_type=name,
        model_class=model_class.__name__,
        layer_types=layer_types,
        windows=windows,
        takes_mask_mapping=takes_mapping,
        attention_softcap=softcap,
        final_logit_softcap=getattr(config, "final_logit_softcapping", None),
        logit_factors=factors,
        max_static_positions=static,
        max_positions=min(limits, default=None),
        verified=name in VERIFIED_TYPES,
    )


def _layer_types(config: Any, name: str) -> tuple[str, ...]:
    """The kind of each layer, inferred from the window where the config does not list them."""
    listed = getattr(config, "layer_types", None)
    if listed is None:
        listed = getattr(config, "layers_block_type", None)
    if listed is None:
        if getattr(config, "attention_chunk_size", None) is not None:
            raise _refusal(name, "chunked attention")
        kind = FULL if _window_or_none(config) is None else SLIDING
        return (kind,) * int(config.num_hidden_layers)
    unknown = sorted({kind for kind in listed if kind not in _LAYER_NAMES})
    if unknown:
        raise _refusal(name, f"{', '.join(kind.replace('_', ' ') for kind in unknown)} layers")
    return tuple(_LAYER_NAMES[kind] for kind in listed)


def _refuse_by_config(config: Any, name: str) -> None:
    if getattr(config, "kv_lora_rank", None) is not None:
        raise _refusal(name, "latent attention (MLA), whose keys and values differ in width")
    if getattr(config, "num_kv_shared_layers", None) or getattr(config, "kv_sharing_modes", None):
        raise _refusal(name, "layers that share keys and values")
    if getattr(config, "alibi", False):
        raise _refusal(name, "position biases inside the attention (ALiBi)")
    if name in _REFUSED_TYPES:
        raise _refusal(name, _REFUSED_TYPES[name])


def _refuse_by_class(config: Any, model_class: Any, name: str, supports_softcap: bool) -> float | None:
    """Refuse by what the model class declares; returns the soft cap of the attention scores."""
    if getattr(model_class, "_is_stateful", False):
        raise _refusal(name, "a recurrent state")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise _refusal(name, "attention code of its own, which cannot be replaced")
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap is None and not getattr(model_class, "_supports_sdpa", True):
        raise _refusal(name, "attention that plain scaled dot products cannot express")
    if softcap is not None and not supports_softcap:
        raise _refusal(name, f"a soft cap of {softcap} on its attention scores")
    return None if softcap is None else float(softcap)


def _window_or_none(config: Any) -> int | None:
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False or not window:
        return None
    return int(window)


def _window(config: Any, name: str) -> int:
    window = _window_or_none(config)
    if window is None:
        raise _refusal(name, "sliding-window layers without a window in the config")
    return window


def _max_static_positions(config: Any) -> int | None:
    rope = getattr(config, "rope_parameters", None) or {}
    entries = [rope, *(entry for entry in rope.values() if isinstance(entry, dict))]
    limits = []
    for entry in entries:
        kind = entry.get("rope_type") or ""
        if "dynamic" in kind:
            limits.append(int(config.max_position_embeddings))
        elif kind == "longrope":
            limits.append(int(entry.get("original_max_position_embeddings") or config.max_position_embeddings))
    return min(limits, default=None)


def _library_class(config: Any, name: str) -> type:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    if MODEL_FOR_MASKED_LM_MAPPING.get(type(config), None) is not None:
        raise _refusal(name, "an encoder architecture run as a decoder")
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if found is None:
        raise _refusal(name, "no causal language model class in transformers")
    chosen: type = found[0] if isinstance(found, tuple) else found
    return chosen


def _refusal(name: str, feature: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(
        f"model type {name!r} has {feature}, which the key/value-slab engine does not run exactly; "
        "use a decoder with plain causal attention such as Qwen3 or Llama"
    )
