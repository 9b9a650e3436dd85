r"""Units behind answers: ``12\pi \text{ cm}^2`` is 12 pi, and ``6m`` is six times m.

Math-verify's own removal of units takes single letters as well (c, d, g, h, l, m, o, s, t and more), variables among
them, so it is off and this is done before.
"""

from __future__ import annotations

import re

_POWER = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
_IN_TEXT = re.compile(r"\s*\\(?:text|mbox|mathrm|textrm)\s*\{(?!\s*(?:if|for|where)\b)[^{}\d]*\}\s*" + _POWER + r"\s*$")
_BARE = re.compile(
    r"(?<=[\d\s}])\s*(?:cm|km|mm|kg|mg|inches|feet|met(?:er|re)s?|miles?|units?|degrees?|dollars|cents|hours?|minutes?"
    r"|seconds?)" + _POWER + r"\s*$"
)
_LETTER = re.compile(r"((?:[\d\s+-]|\.(?=\d)|\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})+?)\s+[mshgNJWVKAC]")


def strip_unit(text: str) -> str:
    """An answer without the unit behind it; one that is all unit is left as it is.

    Args:
        text: A rewritten answer.
    """
    stripped = _BARE.sub("", _IN_TEXT.sub("", text)).strip()
    return stripped or text


def without_unit_letter(text: str) -> str | None:
    """A number, a space and a letter that may be its unit, as in ``37/4 m``, without the letter; None for others.

    Args:
        text: A rewritten gold answer.
    """
    match = _LETTER.fullmatch(text)
    return match[1] if match and any(map(str.isdigit, match[1])) else None
