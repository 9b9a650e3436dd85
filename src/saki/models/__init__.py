"""Loading models, checking that a pair fits, and toy models for tests."""

from saki.models.architecture import (
    VERIFIED_TYPES,
    ArchitectureReport,
    UnsupportedArchitectureError,
    check_architecture,
)
from saki.models.casting import cast_weights
from saki.models.checkpoints import ModelLoadError, tokenizer_home
from saki.models.compatibility import (
    PairSpec,
    TokenizerMismatchError,
    compare_tokenizers,
    logit_width,
    resolve_pair,
)
from saki.models.heads import LogitHead
from saki.models.loading import ModelPair, load_causal_lm, load_pair, load_teacher, load_tokenizer
from saki.models.merging import UnmergeableAdapterError, plain_state
from saki.models.toy import TableLM, enumerate_sequences, tiny_llama, tiny_qwen3
from saki.models.vocabulary import mask_padding_ids

__all__ = [
    "VERIFIED_TYPES",
    "ArchitectureReport",
    "LogitHead",
    "ModelLoadError",
    "ModelPair",
    "PairSpec",
    "TableLM",
    "TokenizerMismatchError",
    "UnmergeableAdapterError",
    "UnsupportedArchitectureError",
    "cast_weights",
    "check_architecture",
    "compare_tokenizers",
    "enumerate_sequences",
    "load_causal_lm",
    "load_pair",
    "load_teacher",
    "load_tokenizer",
    "logit_width",
    "mask_padding_ids",
    "plain_state",
    "resolve_pair",
    "tiny_llama",
    "tiny_qwen3",
    "tokenizer_home",
]
