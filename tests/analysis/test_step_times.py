"""Seconds of a step: of the benchmark's JSON and of a run's metrics; the parts add up to the whole."""

from __future__ import annotations

import pytest

from saki.analysis.step_times import benchmark_steps, draw_step_times, run_steps

ARM = {"step_s": 1.0, "generation_s": 0.5, "scoring_s": 0.1, "update_s": 0.2, "sync_s": 0.0}


def test_parts_of_the_benchmark_and_their_rest():
    split = benchmark_steps({"arms": {"opd": ARM, "fast": {**ARM, "step_s": 0.7}}})
    assert split["opd"] == pytest.approx(
        {"rollout": 0.5, "scoring": 0.1, "update": 0.2, "weight sync": 0.0, "rest": 0.2}
    )
    assert split["fast"]["rest"] == 0.0  # medians of parts may add up to more than the median of the whole
    drawing = draw_step_times(split)
    (axes,) = drawing.figure.axes
    ends = {}
    for bar in axes.patches:
        assert bar.get_x() == pytest.approx(ends.get(bar.get_y(), 0.0))
        ends[bar.get_y()] = bar.get_x() + bar.get_width()
    assert sorted(ends.values()) == pytest.approx([0.8, 1.0])
    assert [text.get_text() for text in axes.texts] == [" 1 s", " 0.8 s"]
    assert sum(share for arm, _, _, share in drawing.rows if arm == "opd") == pytest.approx(1)


def test_a_run_gives_means_of_what_it_logged():
    rows = [{"step": n, "time/rollout_s": 1.0 + n, "time/update_s": 0.5} for n in (1, 2)]
    assert run_steps(rows) == {"rollout": 2.5, "update": 0.5}
    rows = [{**row, "time/wait_s": 0.0, "time/facts_s": 0.25, "time/rest_s": 0.1} for row in rows]
    split = run_steps(rows)  # one process waits for nobody
    assert split == {"rollout": 2.5, "update": 0.5, "what methods ask": 0.25, "rest": 0.1}
    drawing = draw_step_times({"run": split})
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == list(split)
    with pytest.raises(ValueError, match=r"none of time/rollout_s, .* was logged"):
        run_steps([{"step": 1, "loss": 1.0}])


@pytest.mark.parametrize("result", [{}, {"arms": {"a": {"step_s": 1}}}, {"arms": 3}, []])
def test_other_json_is_refused(result):
    with pytest.raises(ValueError, match="expected the JSON of saki bench train"):
        benchmark_steps(result)
