"""Plain numbers: read exactly, compared without tolerance."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saki.evaluation.grading.exact_numbers import exact_number, same_number


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_decimals_are_read_exactly(mantissa, decimals):
    sign, digits = "-" if mantissa < 0 else "", str(abs(mantissa)).zfill(decimals + 1)
    written = (
        f"{sign}{digits[: len(digits) - decimals]}.{digits[len(digits) - decimals :]}" if decimals else str(mantissa)
    )
    assert exact_number(written).value == Fraction(mantissa, 10**decimals)


@given(st.integers(1, 999), st.integers(-300, 300))
def test_powers_of_ten_are_read_exactly(mantissa, power):
    number = exact_number(rf"{mantissa} \times 10^{{{power}}}")
    assert number.value == mantissa * Fraction(10) ** power


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_mixed_numbers(whole, top, bottom):
    assert exact_number(rf"{whole}\frac{{{top}}}{{{bottom}}}").value == whole + Fraction(top, bottom)
    assert exact_number(f"-{whole} {top}/{bottom}").value == -(whole + Fraction(top, bottom))


@pytest.mark.parametrize("text", ["x", "2x", r"\sqrt{2}", "1+1", "10^{10^{10}}", "10^{99999999}", "1/0", "", "1.2.3"])
def test_what_is_no_plain_number(text):
    assert exact_number(text) is None


@given(st.integers(2, 10**5), st.integers(0, 10**6), st.integers(6, 12))
def test_a_fraction_may_be_given_by_many_digits_and_not_by_others(bottom, top, decimals):
    exact = exact_number(f"{10**7 + top}/{bottom}")  # at least 100, so at least six significant digits
    rounded = round(exact.value, decimals)
    text = f"{rounded.numerator * 10**decimals // rounded.denominator}".zfill(decimals + 1)
    written = f"{text[:-decimals]}.{text[-decimals:]}"
    assert same_number(exact, exact_number(written))
    other = exact_number(f"{text[:-decimals]}.{text[-decimals:-1]}{(int(text[-1]) + 5) % 10}")
    assert not same_number(exact, other)
