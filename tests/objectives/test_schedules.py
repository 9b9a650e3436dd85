"""The radius at the steps that SPEC names."""

import pytest

from saki.objectives import constant, cosine_anneal, linear_anneal, radius_schedule


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


def test_linear_with_a_floor_and_cosine():
    assert [linear_anneal(0.1, step, 4, 0.02) for step in (1, 3, 5, 99)] == pytest.approx([0.1, 0.06, 0.02, 0.02])
    values = [cosine_anneal(0.1, step, 4, 0.02) for step in range(1, 7)]
    # 0.02 + 0.04 (1 + cos) at angles 0, 45, 90, 135, 180 degrees
    root = 0.5**0.5
    assert values == pytest.approx([0.1, 0.06 + 0.04 * root, 0.06, 0.06 - 0.04 * root, 0.02, 0.02])
    assert cosine_anneal(0.1, 5, 4) == 0.0


def test_schedules_by_name():
    assert radius_schedule("linear", 0.02, 26, 50) == linear_anneal(0.02, 26, 50)
    assert radius_schedule("cosine", 0.02, 26, 50, 0.01) == cosine_anneal(0.02, 26, 50, 0.01)
    assert radius_schedule("constant", 0.02, 26, 50) == 0.02
    for arguments, message in (
        (("linear", 0.02, 1, 50, 0.03), "radius_floor must lie between"),
        (("constant", 0.02, 1, 50, 0.01), "has no radius_floor"),
        (("linaer", 0.02, 1, 50), "must be one of linear, constant, cosine"),
    ):
        with pytest.raises(ValueError, match=message):
            radius_schedule(*arguments)
