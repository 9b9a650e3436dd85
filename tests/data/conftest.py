"""A word-level tokenizer with a begin token and a chat template, made in code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["<pad>", "<eos>", "<bos>", "<user>", "<assistant>", "<system>", "<think>", "?", *"abcdefgh"]

TEMPLATE = (
    "<bos>{% for message in messages %}{{ '<' + message.role + '>' }} {{ message.content }} <eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is not defined or enable_thinking %}<think>"
    "{% endif %}{% endif %}"
)


@pytest.fixture
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Make the tokenizer; ``template=None`` leaves out the chat template."""

    def make(template: str | None = TEMPLATE, **options: object) -> PreTrainedTokenizerFast:
        vocab = {word: index for index, word in enumerate(WORDS)}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", vocab["<bos>"])]
        )
        given = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "?", **options}
        special = ["<user>", "<assistant>", "<system>", "<think>"]
        made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=special, **given)
        made.chat_template = template
        return made

    return make
