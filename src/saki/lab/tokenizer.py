"""The 36-token vocabulary of the embedded pair, as a Hugging Face fast tokenizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD_TOKEN, EOS_TOKEN, UNKNOWN_TOKEN = "<pad>", "<eos>", "<unk>"
WORDS: tuple[str, ...] = ("Compute ", "Solve ", "\\boxed{", "gcd", "max", "min")
CHARACTERS: tuple[str, ...] = (*"0123456789", *"+-*/%=;(),:}", *"xyz", " ", "\n")
VOCABULARY: tuple[str, ...] = (PAD_TOKEN, EOS_TOKEN, UNKNOWN_TOKEN, *WORDS, *CHARACTERS)
"""Every token, in the order of its id."""

PAD_ID, EOS_ID = VOCABULARY.index(PAD_TOKEN), VOCABULARY.index(EOS_TOKEN)

MAX_LENGTH = 256
"""Longest sequence, in tokens, that the embedded models accept."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    r"""Build the tokenizer that both models of the embedded pair share.

    Words such as ``\boxed{`` are one token each, everything else is one token a character. No special token
    is added on encoding, and no token spans the end of a prompt, so the ids of a prompt followed by the ids of
    its completion are the ids of the whole text. A character outside the vocabulary becomes ``<unk>``.

    Returns:
        A tokenizer with distinct padding (`PAD_ID`) and end-of-sequence (`EOS_ID`) tokens, padding on the left.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    ids = {token: index for index, token in enumerate(VOCABULARY)}
    core = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN_TOKEN))
    pieces = "|".join([*map(re.escape, WORDS), r"[\s\S]"])
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        unk_token=UNKNOWN_TOKEN,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
