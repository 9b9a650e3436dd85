"""What a token id stands for, as text where it is whole characters and as bytes where it is a part of one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True)
class TokenText:
    """One token of a vocabulary.

    Attributes:
        text: Its text; empty where ``raw`` says more.
        raw: Its bytes where they are no whole characters in UTF-8, else None.
        special: Whether it is a control token such as an end of text, or stands for no token at all.
    """

    text: str
    raw: bytes | None = None
    special: bool = False


class TokenTexts:
    """Looks up tokens by id, each on its own.

    ``decode([id])`` would give the replacement character for every part of a character, and some tokenizers drop the
    space in front of a word; so the piece is read by what the tokenizer's decoder does with pieces.

    Args:
        tokenizer: A tokenizer of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = set(tokenizer.all_special_ids)
        self._steps = _decoder_steps(tokenizer)
        self._bytes = _byte_alphabet() if "ByteLevel" in self._steps else {}

    def __call__(self, ids: Sequence[int]) -> list[TokenText]:
        """The tokens of these ids, in their order."""
        return [self._one(token) for token in ids]

    def _one(self, token: int) -> TokenText:
        if token in self._added:  # its content stands literally, whatever the decoder does with other pieces
            added = self._added[token]
            return TokenText(str(added), special=token in self._special or bool(getattr(added, "special", False)))
        piece = self._tokenizer.convert_ids_to_tokens(token) if 0 <= token < len(self._tokenizer) else None
        if piece is None:
            return TokenText(f"[no token {token}]", special=True)
        if self._bytes and all(char in self._bytes for char in piece):
            return _from_bytes(bytes(self._bytes[char] for char in piece), token in self._special)
        if match := _BYTE_PIECE.fullmatch(piece):
            return _from_bytes(bytes.fromhex(match[1]), token in self._special)
        if "Metaspace" in self._steps or "Replace" in self._steps:
            return TokenText(piece.replace(_SPACE_MARK, " "), special=token in self._special)
        return TokenText(str(self._tokenizer.decode([token])), special=token in self._special)


def _from_bytes(raw: bytes, special: bool) -> TokenText:
    try:
        return TokenText(raw.decode("utf-8"), special=special)
    except UnicodeDecodeError:
        return TokenText("", raw=raw, special=special)


def _decoder_steps(tokenizer: Any) -> frozenset[str]:
    """Names of the steps of a fast tokenizer's decoder; none for other tokenizers."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return frozenset()
    state = json.loads(decoder.__getstate__())
    steps = state.get("decoders", [state])
    spaces = {"String": _SPACE_MARK}
    return frozenset(step["type"] for step in steps if step["type"] != "Replace" or step["pattern"] == spaces)


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers write bytes with: printable ones stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
