"""What a plan must know of a dense decoder: its widths, and from them its parameters and cache entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from saki.types import check_number

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""

_QUERY_NORM_TYPES = ("qwen3",)
_INPUT_BIAS_TYPES = ("qwen2",)
COUNTED_TYPES = ("llama", "mistral", "smollm3", *_QUERY_NORM_TYPES, *_INPUT_BIAS_TYPES)
"""Model types whose parameters follow from the config's widths alone."""


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder with gated feed-forward layers and grouped-query attention.

    Attributes:
        name: As it was asked for.
        num_layers: Decoder layers.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the feed-forward layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        vocab_size: Width of the output layer.
        tied: Whether the output layer is the embedding.
        num_other_parameters: Norms and biases.
        dtype: In which its weights are stored.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    num_other_parameters: int
    dtype: str = "bfloat16"

    @property
    def layer_matrix_parameters(self) -> int:
        """Entries of the matrices of all layers: each costs two FLOPs a token."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_parameters(self) -> int:
        """Entries of the output layer."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters, tied ones once."""
        tables = self.head_parameters * (1 if self.tied else 2)
        return self.layer_matrix_parameters + tables + self.num_other_parameters

    def weight_bytes(self, dtype: str) -> int:
        """W of Eq. 79-81."""
        return self.num_parameters * DTYPE_BYTES[dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Keys and values of one token in all layers; KV(n) of Eq. 79-81 is n times this."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[dtype]


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """A shape from the fields of a Hugging Face ``config.json``.

    Args:
        name: What the user calls the model.
        config: ``model_type`` (llama if left out), ``num_hidden_layers``, ``hidden_size``, ``intermediate_size``,
            ``num_attention_heads``, ``vocab_size``, and where they differ from the defaults ``num_key_value_heads``,
            ``head_dim``, ``tie_word_embeddings``, ``attention_bias``, ``mlp_bias``. ``num_parameters`` takes the
            place of the count for a model type that is not in :data:`COUNTED_TYPES`. ``dtype`` or ``torch_dtype``, else
            bfloat16.

    Raises:
        ValueError: If a field is missing or no count, or parameters cannot be counted for the model type.
    """
    widths = {}
    for field in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if field not in config:
            raise ValueError(f"the config of {name!r} has no {field}; a plan needs it, so add it")
        widths[field] = _count(name, field, config[field])
    layers, hidden, heads = widths["num_hidden_layers"], widths["hidden_size"], widths["num_attention_heads"]
    kv_heads = _count(name, "num_key_value_heads", config.get("num_key_value_heads") or heads)
    head_dim = _count(name, "head_dim", config.get("head_dim") or hidden // heads)
    kind = str(config.get("model_type", "llama"))
    if heads % kv_heads:
        raise ValueError(
            f"the config of {name!r} has {heads} query heads for {kv_heads} key heads; expected a multiple of them"
        )
    tied = bool(config.get("tie_word_embeddings", False))
    inputs = (heads + 2 * kv_heads) * head_dim
    other = (2 * layers + 1) * hidden
    if kind in _QUERY_NORM_TYPES:
        other += layers * 2 * head_dim
    if kind in _INPUT_BIAS_TYPES:
        other += layers * inputs
    elif config.get("attention_bias"):
        other += layers * (inputs + hidden)
    if config.get("mlp_bias"):
        other += layers * (2 * widths["intermediate_size"] + hidden)
    intermediate, vocabulary = widths["intermediate_size"], widths["vocab_size"]
    stored = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    dtype = stored if stored in DTYPE_BYTES else "bfloat16"
    shape = ModelShape(name, layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary, tied, other, dtype)
    if "num_parameters" in config:
        given = _count(name, "num_parameters", config["num_parameters"])
        matrices = shape.num_parameters - other
        if given < matrices:
            raise ValueError(
                f"the config of {name!r} gives {given} parameters, but its matrices alone have {matrices}; mend one"
            )
        return replace(shape, num_other_parameters=given - matrices)
    if kind not in COUNTED_TYPES or "num_experts" in config or "num_local_experts" in config:
        raise ValueError(
            f"parameters of the model type {kind!r} of {name!r} are not counted from its config; give a YAML file with "
            f"its config fields and num_parameters, or a model of type {', '.join(COUNTED_TYPES)}"
        )
    return shape


def _count(name: str, field: str, value: Any) -> int:
    check_number(f"{field} of {name!r}", value, least=1, whole=True)
    return int(value)


def _qwen3(layers: int, hidden: int, intermediate: int, heads: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": tied,
    }


PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _qwen3(28, 1024, 3072, 16, True),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, 16, True),
    "qwen3-4b": _qwen3(36, 2560, 9728, 32, True),
    "qwen3-8b": _qwen3(36, 4096, 12288, 32, False),
    "smollm2-135m": {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}
"""Config numbers by short name: ``config.json`` of Qwen/Qwen3-0.6B, -1.7B, -4B and -8B (the -Base models have the same)
and of HuggingFaceTB/SmolLM2-135M."""

HUB_NAMES: dict[str, str] = {
    **{f"Qwen/Qwen3-{size}B{kind}": f"qwen3-{size}b" for size in ("0.6", "1.7", "4", "8") for kind in ("", "-Base")},
    "lllyx/Qwen3-4B-Base-GRPO": "qwen3-4b",
    "HuggingFaceTB/SmolLM2-135M": "smollm2-135m",
    "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m",
}
"""Short names by hub name, so that these are planned without the hub."""
