"""Figure 2: points, bars and whiskers are the comparison's effects in percentage points."""

from __future__ import annotations

import math

import pytest

from saki.analysis.figure2 import draw_figure2
from saki.analysis.probe_comparison import ALL, CONTRAST, QUARTILES, Effect, ProbeComparison

STEPS = (0, 10, 20)


def value_of(step, metric, group):
    """Another one for each."""
    return 1e-4 * step * (1 + ["c1", "c_top", "c_rest"].index(metric)) * (1 + [ALL, *QUARTILES, CONTRAST].index(group))


def comparison(reference, steps=STEPS):
    effects = [
        Effect(s, m, g, v := value_of(s, m, g), v - 0.001, v + 0.002, 5, 40, 1, math.nan)
        for s in steps
        for m in ("c1", "c_top", "c_rest")
        for g in (ALL, *QUARTILES, CONTRAST)
    ]
    return ProbeComparison("saki", reference, 16, tuple(effects), 100)


def test_panels_show_the_effects():
    drawing = draw_figure2(comparison("trb"), comparison("random_tm", (20,)), active_steps=14)
    left, middle, right = drawing.figure.axes
    for container, metric in zip(left.containers, ("c1", "c_top"), strict=True):
        values = [100 * value_of(step, metric, ALL) for step in STEPS]
        assert container.lines[0].get_ydata().tolist() == pytest.approx(values)
        ends = [tuple(segment[:, 1]) for segment in container.lines[2][0].get_segments()]
        assert ends == [pytest.approx((v - 0.1, v + 0.2)) for v in values]
    for axes, metric in ((middle, "c_top"), (right, "c_rest")):
        heights = [bar.get_height() for bar in axes.patches]
        assert heights == pytest.approx([100 * value_of(20, metric, group) for group in QUARTILES])
        contrast = 100 * value_of(20, metric, CONTRAST)
        assert f"Q4−Q1 {contrast:+.2f} [{contrast - 0.1:.2f}, {contrast + 0.2:.2f}]" in axes.get_xlabel()
    assert left.get_title(loc="left") == "(a) gain over TRB"
    assert middle.get_title(loc="left") == "(b) ΔC16\nover Random-TM, step 20"
    assert right.get_title(loc="left") == "(c) Δ(C16−C1)\nover Random-TM, step 20"
    assert [row[0] for row in drawing.rows] == ["a"] * 6 + ["b"] * 5 + ["c"] * 5
    assert {row[2] for row in drawing.rows} == {"trb", "random_tm"}


def test_the_correction_phase_is_shaded_and_its_end_is_a_line():
    left = draw_figure2(comparison("trb"), active_steps=14).figure.axes[0]
    (shade,) = left.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (0, 14)
    assert any(list(line.get_xdata()) == [15, 15] for line in left.lines)
    whole = draw_figure2(comparison("trb"), active_steps=20).figure.axes[0]
    assert not any(list(line.get_xdata()) == [21, 21] for line in whole.lines)
    assert not draw_figure2(comparison("trb")).figure.axes[0].patches
