"""Single tokens as text or bytes, for the decoders that tokenizers have."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Metaspace, Replace, Sequence
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from saki.analysis.trace import TokenText, TokenTexts
from saki.lab import student_path
from saki.models import load_tokenizer
from tests.analysis.trace import made_rollouts as made


def test_byte_level_pieces_are_their_bytes():
    texts = TokenTexts(made.byte_level_tokenizer())(list(range(len(made.PIECES))))
    for piece, found in zip(made.PIECES, texts, strict=True):
        try:
            assert found == TokenText(piece.decode())
        except UnicodeDecodeError:
            assert found == TokenText("", raw=piece)
    assert [each.raw for each in texts if each.raw] == [made.EURO[:2], made.EURO[2:]]


def test_control_tokens_stand_literally_and_absent_ones_are_named():
    texts = TokenTexts(made.byte_level_tokenizer())
    assert texts([made.END, made.END + 1]) == [
        TokenText("<|end|>", special=True),
        TokenText(f"[no token {made.END + 1}]", special=True),
    ]


@pytest.mark.parametrize(
    "decoder", [Sequence([Replace("\N{LOWER ONE EIGHTH BLOCK}", " "), ByteFallback(), Fuse()]), Metaspace()]
)
def test_sentence_pieces_keep_the_space_in_front(decoder):
    tokenizer = Tokenizer(BPE(vocab={"\N{LOWER ONE EIGHTH BLOCK}cat": 0, "<0xE2>": 1, "<0x41>": 2}, merges=[]))
    tokenizer.decoder = decoder
    texts = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert texts([0, 1, 2]) == [TokenText(" cat"), TokenText("", raw=b"\xe2"), TokenText("A")]


def test_other_tokenizers_decode_each_token():
    tokenizer = load_tokenizer(str(student_path()))
    ids = tokenizer("Compute gcd(28,8):")["input_ids"]
    assert "".join(text.text for text in TokenTexts(tokenizer)(ids)) == "Compute gcd(28,8):"
