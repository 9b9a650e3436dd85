r"""Find what a completion put into ``\boxed{}``."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARGIN = re.compile(r"(?:\s|(?<!\\)\\\s)+\Z")
"""Spaces at the end, the ones with a backslash among them, which would be left alone without its space."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def boxes(text: str) -> list[str]:
    r"""Contents of every balanced, non-empty box, in the order in which they begin.

    An empty box is skipped: it is the prompt's own ``\boxed{}``, said again. A box that the length cap cut is not
    balanced and is skipped as well. Escaped braces, as in ``\boxed{\{1, 2\}}``, do not count.

    Args:
        text: A completion.
    """
    return [content for content in _balanced(text) if content]


def last_box(text: str) -> str | None:
    """Content of the last balanced, non-empty box, or None where there is none.

    Args:
        text: A completion. What it boxed earlier and took back does not count.
    """
    found = boxes(text)
    return found[-1] if found else None


def _balanced(text: str) -> Iterator[str]:
    for match in _BOX.finditer(text):
        depth, position = 1, match.end()
        while position < len(text) and depth:
            if text[position] == "\\":
                position += 1  # the next character is escaped, or begins a command's name
            elif text[position] == "{":
                depth += 1
            elif text[position] == "}":
                depth -= 1
            position += 1
        if not depth:
            yield _MARGIN.sub("", text[match.end() : position - 1]).strip()
