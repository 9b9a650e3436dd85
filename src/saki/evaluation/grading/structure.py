r"""The outer structure of an answer: lists, sets, tuples, intervals and unions, down to leaves for math-verify."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_OPEN, _CLOSE = "([{", ")]}"
_PAIRS = {"(": ")", "[": "]"}
_MEMBERSHIP = re.compile(r"^[a-zA-Z](?:_\{?\w+\}?)?\s*\\in(?![a-zA-Z])\s*")


@dataclass(frozen=True)
class Leaf:
    """One expression.

    Attributes:
        text: Its LaTeX.
    """

    text: str


@dataclass(frozen=True)
class Group:
    r"""Several answers together.

    Attributes:
        kind: ``"list"``: in any order, of which ``{1, 2}`` and ``1 \pm 2`` are forms; ``"tuple"``: in order, in
            brackets, an interval among them; ``"union"``: joined by ``\cup``, in any order.
        items: The parts.
        brackets: The brackets of a tuple, such as ``"(]"``.
    """

    kind: Literal["list", "tuple", "union"]
    items: tuple[Structure, ...]
    brackets: str = ""


Structure = Leaf | Group


def parse_structure(text: str) -> Structure:
    """Split a rewritten answer into its parts.

    Args:
        text: What :func:`saki.evaluation.grading.rewriting.rewrite` returned.
    """
    text = _MEMBERSHIP.sub("", text.strip()).strip()
    parts = split_top_level(text, r"[,;]")
    if len(parts) > 1:
        return _list([parse_structure(part) for part in parts])
    union = split_top_level(text, r"\\cup(?![a-zA-Z])")
    if len(union) > 1:
        return Group("union", tuple(parse_structure(part) for part in union))
    if inner := _enclosed(text, r"\{", r"\}"):
        return parse_structure(inner)
    if text[:1] in _PAIRS and text[-1:] in (")", "]") and _closes_at(text) == len(text) - 1:
        items = split_top_level(text[1:-1], r"[,;]")
        if len(items) > 1:
            return Group("tuple", tuple(parse_structure(item) for item in items), text[0] + text[-1])
        if text[0] == "(" and items:
            return parse_structure(items[0])
    if r"\pm" in text:
        upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
        lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
        return Group("list", (Leaf(upper), Leaf(lower)))
    return Leaf(text)


def split_top_level(text: str, separator: str) -> list[str]:
    """Split at separators outside brackets and environments; empty parts are left out.

    Args:
        text: LaTeX.
        separator: Regular expression of a separator.
    """
    pattern = re.compile(separator)
    parts, begin, depth, position = [], 0, 0, 0
    while position < len(text):
        if depth == 0 and (match := pattern.match(text, position)):
            parts.append(text[begin:position])
            begin = position = match.end()
            continue
        change, position = _step(text, position)
        depth = max(0, depth + change)
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def num_answers(structure: Structure) -> int:
    """How many answers there are: the length of a list, else one.

    Args:
        structure: A parsed answer.
    """
    return len(structure.items) if isinstance(structure, Group) and structure.kind == "list" else 1


def _list(items: list[Structure]) -> Group:
    flat: list[Structure] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Group) and item.kind == "list" else (item,))
    return Group("list", tuple(flat))


def _step(text: str, position: int) -> tuple[int, int]:
    """Change of depth at a position, and the next position."""
    if text[position] == "\\":
        for word, change in ((r"\begin", 1), (r"\end", -1), (r"\{", 1), (r"\}", -1), (r"\langle", 1), (r"\rangle", -1)):
            if text.startswith(word, position):
                return change, position + len(word)
        return 0, position + 2
    if text[position] in _OPEN:
        return 1, position + 1
    return (-1 if text[position] in _CLOSE else 0), position + 1


def _closes_at(text: str) -> int:
    """Where the bracket that opens at the beginning closes; brackets of either kind close it, as in ``(1, 2]``."""
    depth, position = 0, 0
    while position < len(text):
        here = position
        change, position = _step(text, position)
        depth += change
        if depth == 0:
            return here
    return -1


def _enclosed(text: str, opening: str, closing: str) -> str | None:
    if not (text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing)):
        return None
    end = _closes_at(text)
    return text[len(opening) : -len(closing)].strip() if end == len(text) - len(closing) else None
