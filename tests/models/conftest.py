"""Tokenizers and checkpoints made in code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from saki.models import tiny_qwen3

WORDS = ["<pad>", "<eos>", "<turn>", *"abcdefghij"]


@pytest.fixture
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """A word-level tokenizer over ``words``; id 0 pads, id 1 ends, id 2 is a special turn token."""

    def make(words: list[str] | None = None, **options: object) -> PreTrainedTokenizerFast:
        vocab = {word: index for index, word in enumerate(words or WORDS)}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="a"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        given = {"pad_token": "<pad>", "eos_token": "<eos>", "additional_special_tokens": ["<turn>"], **options}
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)

    return make


@pytest.fixture
def checkpoint(tmp_path: Path, make_tokenizer: Callable[..., PreTrainedTokenizerFast]) -> Callable[..., Path]:
    """Write a tiny Qwen3 with its tokenizer to a folder."""

    def write(name: str = "model", width: int = 16, seed: int = 0, **options: object) -> Path:
        folder = tmp_path / name
        model = tiny_qwen3(vocab_size=width, hidden=16, layers=1, heads=2, kv_heads=1, seed=seed, **options)
        model.config.eos_token_id = 1
        model.generation_config.eos_token_id = 1
        model.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        return folder

    return write
