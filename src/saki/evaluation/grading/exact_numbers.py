r"""Plain numbers as exact fractions: integers, decimals, fractions, mixed numbers, powers of ten, percentages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from saki.evaluation.grading.units import strip_unit

SIGNIFICANT_DIGITS = 6
"""A decimal stands for a fraction that it rounds from if it has at least so many digits: 0.333333 for 1/3."""

_LARGEST_EXPONENT = 400

_DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
_SIGN = r"(?P<sign>[+-]?)\s*"
_TEN = r"10\s*\^\s*(?:\{\s*(?P<power>[+-]?\s*\d+)\s*\}|(?P<digit>\d))"
_FORMS = tuple(
    re.compile(_SIGN + form)
    for form in (
        rf"(?P<value>{_DECIMAL})",
        rf"(?:(?P<value>{_DECIMAL})\s*(?:\\times|\\cdot|\*|x)\s*)?{_TEN}",
        rf"(?:(?P<whole>\d+)\s*)?\\frac\s*\{{\s*(?P<inner>[+-]?)\s*(?P<top>{_DECIMAL})\s*\}}\s*"
        rf"\{{\s*(?P<bottom>{_DECIMAL})\s*\}}",
        rf"(?:(?P<whole>\d+)\s+)?(?P<inner>)(?P<top>{_DECIMAL})\s*/\s*(?P<bottom>{_DECIMAL})",
    )
)
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*$")
_PERCENT = re.compile(r"\s*(?:\\?%|percent)\s*$")


@dataclass(frozen=True)
class ExactNumber:
    """A number as it was written.

    Attributes:
        value: Its value; that of ``9%`` is 9.
        decimals: Digits after the point where it was written as a decimal, else None.
        digits: Significant digits of that decimal.
        percent: Whether a percent sign followed.
    """

    value: Fraction
    decimals: int | None = None
    digits: int = 0
    percent: bool = False


def exact_number(text: str) -> ExactNumber | None:
    """Read a plain number, with a unit or a percent sign behind it or not.

    Args:
        text: A rewritten answer.

    Returns:
        The number, or None where the text is more than a number.
    """
    stripped = _PERCENT.sub("", text.strip())
    percent = stripped != text.strip()
    stripped = strip_unit(_DEGREES.sub("", stripped))
    for form in _FORMS:
        match = form.fullmatch(stripped)
        if match:
            return _number(match.groupdict(), percent)
    return None


def same_number(gold: ExactNumber, answer: ExactNumber) -> bool:
    """Whether two numbers are equal.

    There is no tolerance: 1.57 is not 1.6. Only a fraction may be given by a decimal of
    :data:`SIGNIFICANT_DIGITS` digits or more that it rounds to. Where one of the two is a percentage, it may stand
    for x as well as for x / 100.

    Args:
        gold: The right answer.
        answer: What is judged.
    """
    if gold.percent == answer.percent:
        return _equal(gold, answer)
    percentage, other = (gold, answer) if gold.percent else (answer, gold)
    share = ExactNumber(
        percentage.value / 100,
        None if percentage.decimals is None else percentage.decimals + 2,
        percentage.digits,
    )
    return _equal(percentage, other) or _equal(share, other)


def _number(parts: dict[str, str | None], percent: bool) -> ExactNumber | None:
    sign = -1 if parts["sign"] == "-" else 1
    if "top" in parts:
        bottom = Fraction(parts["bottom"] or "0")
        if bottom == 0:
            return None
        fraction = Fraction(parts["top"] or "0") / bottom * (-1 if parts["inner"] == "-" else 1)
        return ExactNumber(sign * (int(parts["whole"] or 0) + fraction), percent=percent)
    written = parts["value"] or "1"
    power = int((parts.get("power") or parts.get("digit") or "0").replace(" ", ""))
    if abs(power) > _LARGEST_EXPONENT:
        return None
    decimals = len(written.partition(".")[2]) - power
    digits = len(written.replace(".", "").lstrip("0"))
    is_decimal = "." in written
    value = sign * Fraction(written) * Fraction(10) ** power
    return ExactNumber(value, decimals if is_decimal else None, digits, percent)


def _equal(first: ExactNumber, second: ExactNumber) -> bool:
    if first.value == second.value:
        return True
    for rounded, exact in ((first, second), (second, first)):
        if rounded.decimals is not None and exact.decimals is None and rounded.digits >= SIGNIFICANT_DIGITS:
            return abs(rounded.value - exact.value) <= Fraction(1, 2) * Fraction(10) ** -rounded.decimals
    return False
