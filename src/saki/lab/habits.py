"""Confident wrong habits of arithmetic: one wrong rule at every step, whose results propagate like true ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

Operations = Mapping[str, Callable[[int, int], int]]
"""By symbol, what is done in its place: (left, right) -> result."""


def by_columns(left: int, right: int, column: Callable[[int, int], int]) -> int:
    """Work each decimal column on its own, modulo 10, so that nothing is carried or borrowed.

    Args:
        left: A number; its sign is not looked at.
        right: Another.
        column: (digit of left, digit of right) -> any whole number.

    Returns:
        The number that the columns spell, 0 or more.
    """
    left, right = abs(left), abs(right)
    result, place = 0, 1
    while place <= max(left, right):
        result += place * (column(left // place % 10, right // place % 10) % 10)
        place *= 10
    return result


HABITS: Mapping[str, Operations] = MappingProxyType(
    {
        "": {},
        "no_carry": {
            "+": lambda left, right: by_columns(left, right, lambda a, b: a + b),
            "-": lambda left, right: by_columns(left, right, lambda a, b: a - b),
        },
        "next_row": {
            "*": lambda left, right: left * (right + 1),
            "/": lambda left, right: left // right + 1,
        },
    }
)
"""Every habit by name; the empty name is no habit.

``no_carry``: additions drop the carry and subtractions the borrow. ``next_row``: products, and the quotients that are
looked up among them, are taken from the next row of the multiplication table.
"""
