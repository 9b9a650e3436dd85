"""The radius at the steps that SPEC names."""

import pytest

from saki.objectives import constant, linear_anneal


@pytest.mark.parametrize(("step", "radius"), [(1, 0.02), (26, 0.01), (50, 0.0004), (51, 0.0), (200, 0.0)])
def test_paper_schedule(step, radius):
    assert linear_anneal(0.02, step, 50) == pytest.approx(radius, rel=1e-12)


def test_zero_is_exact():
    assert linear_anneal(0.02, 51, 50) == 0.0


def test_constant():
    assert constant(0.02, 1) == constant(0.02, 999) == 0.02


@pytest.mark.parametrize("arguments", [(-0.1, 1, 50), (0.1, 0, 50), (0.1, 1, 0)])
def test_bad_values(arguments):
    with pytest.raises(ValueError, match=r"must be|count from"):
        linear_anneal(*arguments)
