"""The figure of the rollout benchmark shows what the JSON says."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from saki.analysis.benchmark_figure import draw_rollout_benchmark, plot_rollout_benchmark
from saki.analysis.style import figure_context


def arm(speed, **split):
    spread = {"min": 0.9 * speed, "max": 1.2 * speed}
    return {"tokens_per_s": speed, "spread": {"tokens_per_s": spread}, "split": {"rest": 1.0, **split}}


@pytest.fixture
def result():
    arms = {"student_only": arm(900.0, draft=3.0), "exact_q": arm(600.0, draft=2.0, verify=1.0), "hf": arm(300.0)}
    return {"arms": arms}


def test_bars_are_the_medians_and_the_split_adds_up_to_one(result):
    with figure_context():
        figure = draw_rollout_benchmark(result)
    left, right = figure.axes
    widths = {bar.get_y() + bar.get_height() / 2: bar.get_width() for bar in left.patches}
    names = dict(zip(left.get_yticks(), [label.get_text() for label in left.get_yticklabels()], strict=True))
    assert {names[round(y)]: width for y, width in widths.items()} == {"student_only": 900, "exact_q": 600, "hf": 300}
    # An arm that knows no phases has no bar in the split.
    assert [label.get_text() for label in right.get_yticklabels()] == ["student_only", "exact_q"]
    shares = {}
    for bar in right.patches:
        assert bar.get_x() == pytest.approx(shares.get(bar.get_y(), 0.0))  # stacked on those before
        shares[bar.get_y()] = shares.get(bar.get_y(), 0.0) + bar.get_width()
    np.testing.assert_allclose(list(shares.values()), [1.0, 1.0])


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_it_is_written_in_both_forms(result, tmp_path, suffix):
    path = plot_rollout_benchmark(result, tmp_path / f"bench{suffix}")
    if suffix == ".png":
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        text = path.read_text()
        ElementTree.fromstring(text)
        assert "student_only 900" in text


def test_it_refuses_what_it_cannot_draw(result, tmp_path):
    with pytest.raises(ValueError, match="no arms"):
        plot_rollout_benchmark({"arms": {}}, tmp_path / "bench.png")
    with pytest.raises(ValueError, match=r"written as \.png or \.svg"):
        plot_rollout_benchmark(result, tmp_path / "bench.pdf")
