"""Checks of single values that a user gives."""

from __future__ import annotations

import json
import math
from typing import Any


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    below: float | None = None,
    whole: bool = False,
    positive: bool = False,
) -> None:
    """Refuse what is no number, not finite or out of range.

    Args:
        name: What the user calls it.
        value: What came.
        least: Smallest allowed value.
        below: Values from here on are refused.
        whole: Whether it must be an int; True and 3.0 are none.
        positive: Whether 0 is refused.

    Raises:
        ValueError: One sentence: what, got, expected.
    """
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {expected}, got {value!r} ({type(value).__name__})")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if positive and value <= 0:
        raise ValueError(f"{name} must be above 0, got {value}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if below is not None and value >= below:
        raise ValueError(f"{name} must be below {below:g}, got {value}")


def json_object(name: str, value: Any) -> dict[str, Any] | None:
    """A mapping, or None; the command line gives it as a JSON object.

    Args:
        name: What the user calls it.
        value: What came: a mapping, its JSON, or None.

    Raises:
        ValueError: One sentence.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict | None):
        raise ValueError(f"{name} must be a JSON object, got {value!r}")
    return value
