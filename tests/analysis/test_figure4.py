"""Figure 4: the rate over seeds, its bound from the logged radius, and where the radius is 0."""

from __future__ import annotations

import math

import pytest

from saki.analysis.figure4 import draw_figure4
from tests.analysis import made_study as made


def test_rate_and_bound_are_what_was_logged():
    runs = [made.metric_rows("saki", seed) for seed in made.SEEDS]
    unbounded = [[{"step": 1, "rollout/correction_rate": 0.3}]]
    drawing = draw_figure4({"saki": runs, "skd": unbounded})
    assert {row[0] for row in drawing.rows} == {"saki"}
    for _, step, radius, bound, rate, low, high, seeds in drawing.rows:
        assert radius == pytest.approx(0.02 * max(0.0, 1 - (step - 1) / 10), abs=1e-12)
        assert bound == pytest.approx(math.sqrt(radius / 2), abs=1e-9)
        assert rate == pytest.approx(sum(run[step - 1]["rollout/correction_rate"] for run in runs) / 3)
        assert rate <= bound
        assert low <= rate <= high
        assert seeds == 3
    (axes,) = drawing.figure.axes
    bound_line, rate_line, end = axes.lines
    assert rate_line.get_ydata().tolist() == [row[4] for row in drawing.rows]
    assert bound_line.get_ydata().tolist() == pytest.approx([row[3] for row in drawing.rows])
    assert list(end.get_xdata()) == [11, 11]  # the first step at radius 0
    assert axes.texts[0].get_text() == "radius 0\nfrom step 11"


def test_runs_without_a_bound_are_refused():
    with pytest.raises(ValueError, match=r"none of skd logged rollout/correction_rate with a bound above 0"):
        draw_figure4({"skd": [[{"step": 1, "rollout/correction_rate": 0.3}]]})
    student_alone = [{"step": 1, "rollout/correction_rate": 0.0, "rollout/pinsker_bound": 0.0}]
    with pytest.raises(ValueError, match="none of opd logged"):
        draw_figure4({"opd": [student_alone]})
    with pytest.raises(ValueError, match="none of no run"):
        draw_figure4({})
