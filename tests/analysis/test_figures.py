"""Figures: what they draw, what they say, and that they leave no settings behind."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from saki.analysis import plot_corrections
from saki.analysis.figures import (
    CHARTS,
    describe_corrections,
    describe_losses,
    describe_speed,
    draw_corrections,
    draw_losses,
    pinsker_bound,
)
from saki.analysis.style import THEME, figure_context, figure_to_svg, theme_css


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_png_is_written_and_settings_come_back(rows, tmp_path):
    mpl.rcParams["font.size"] = 13.0
    before = dict(mpl.rcParams)
    try:
        path = plot_corrections(rows, tmp_path / "new" / "corrections.png")
        assert dict(mpl.rcParams) == before
    finally:
        mpl.rcParams["font.size"] = mpl.rcParamsDefault["font.size"]
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [each.name for each in path.parent.iterdir()] == ["corrections.png"]


def test_correction_chart_needs_a_correction_rate(tmp_path):
    with pytest.raises(ValueError, match="no rollout/correction_rate among the metrics of 1 steps"):
        plot_corrections([{"step": 1, "rollout/mean_tv": 0.1}], tmp_path / "corrections.png")


def test_correction_chart_draws_the_logged_values(rows):
    with figure_context():
        (axes,) = draw_corrections(rows).axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert set(lines) == {"Pinsker bound √(radius/2)", "mean TV(p, q)", "corrected tokens"}
    np.testing.assert_array_equal(lines["corrected tokens"], [row["rollout/correction_rate"] for row in rows])
    np.testing.assert_array_equal(lines["mean TV(p, q)"], [row["rollout/mean_tv"] for row in rows])


def test_bound_comes_from_the_radius_where_it_was_not_logged(rows):
    logged = pinsker_bound(rows)[1]
    bare = [{name: value for name, value in row.items() if name != "rollout/pinsker_bound"} for row in rows]
    np.testing.assert_allclose(pinsker_bound(bare)[1], logged)
    neither = [{"step": 1, "rollout/correction_rate": 0.1}]
    assert pinsker_bound(neither)[0].size == 0
    assert "bound" not in describe_corrections(neither)


def test_description_counts_steps_above_the_bound(rows):
    assert "above the bound at 0 of 60 steps" in describe_corrections(rows)
    assert "At the 10 steps of radius 0 it is exactly 0." in describe_corrections(rows)
    rows[3]["rollout/correction_rate"] = 0.5
    rows[55]["rollout/correction_rate"] = 0.1
    text = describe_corrections(rows)
    assert "above the bound at 2 of 60 steps" in text
    assert "at most 50% (step 4)" in text
    assert "radius 0 it is not 0" in text


def test_description_of_time_adds_up(rows):
    assert "1 seconds a step on average: rollout 50%, score 10%, update 30%, sync 10%." in describe_speed(rows)
    further = [{**row, "time/facts_s": 0.25, "time/wait_s": 0.0, "time/rest_s": 0.75} for row in rows]
    text = describe_speed(further)
    assert "2 seconds a step" in text
    assert "facts 12.5%" in text
    assert "rest 37.5%" in text
    assert "wait" not in text
    del rows[0]["time/score_s"]
    assert "not logged at a step" in describe_speed(rows)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
@pytest.mark.parametrize("case", ["one metric", "one step", "zeros", "holes"])
def test_every_chart_draws_whatever_was_logged(chart, case, rows):
    names = chart.names(rows)
    if case == "one metric":
        rows = [{"step": row["step"], names[0]: row[names[0]]} for row in rows]
    elif case == "one step":
        rows = rows[:1]
    elif case == "zeros":
        rows = [{"step": row["step"], **dict.fromkeys(names, 0.0)} for row in rows]
    elif case == "holes":
        rows = [{**row, **dict.fromkeys(names, float("nan"))} if row["step"] % 5 else row for row in rows]
    with figure_context():
        svg = figure_to_svg(chart.draw(rows), chart.name, chart.title)
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == chart.title
    assert isinstance(chart.describe(rows), str)
    assert "mathdefault" not in svg


def test_losses_of_other_methods_have_panels_of_their_own(rows):
    for row in rows:
        row["loss/forward_kl"] = 0.5
        row["loss/forward_kl_share"] = 0.1
        del row["loss/teacher_mode"]
    with figure_context():
        panels = draw_losses(rows).axes
    assert [axes.get_title("left") for axes in panels] == ["reverse KL", "forward KL"]
    assert "Forward KL: 0.5 at step 1" in describe_losses(rows)


def test_svg_is_self_contained_and_themed(rows):
    with figure_context():
        svg = figure_to_svg(draw_corrections(rows), "one", 'a "title" & <more>')
        other = figure_to_svg(draw_corrections(rows), "two", "title")
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'a "title" & <more>'
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    assert all(name.startswith("one-") for name in ids)
    assert not set(ids) & {each.get("id") for each in ElementTree.fromstring(other).iter()}
    for each in root.iter():
        link = each.get("{http://www.w3.org/1999/xlink}href")
        assert link is None or link[1:] in ids
    assert "<style" not in svg
    assert "<metadata" not in svg
    for colour in THEME:
        assert colour not in svg
    assert "var(--blue)" in svg


def test_same_rows_give_the_same_svg(rows):
    with figure_context():
        assert figure_to_svg(draw_corrections(rows), "a", "") == figure_to_svg(draw_corrections(rows), "a", "")


def test_lines_and_text_stand_out_from_light_and_dark_paper():
    papers = THEME["#fefefe"]
    for colour, (variable, *shades) in THEME.items():
        # Text needs 4.5, graphical parts 3 (WCAG 2.1); orange and sky are light by design and drawn thick.
        least = {"--ink": 7.0, "--faint": 4.5, "--grid": 1.1, "--paper": 1.0}.get(variable, 2.0)
        for shade, paper in zip(shades, papers[1:], strict=True):
            high, low = sorted((luminance(shade), luminance(paper)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= least, (colour, shade)
    assert theme_css().count("--blue:") == 2
