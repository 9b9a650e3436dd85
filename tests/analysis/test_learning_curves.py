"""Learning curves: each point is the macro average of the counts at its step."""

from __future__ import annotations

import numpy as np
import pytest

from saki.analysis.learning_curves import draw_learning_curves
from saki.analysis.study_folder import read_study_folder
from tests.analysis import made_study as made


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_study_folder(made.make_study(tmp_path_factory.mktemp("curves") / "study"))


def test_points_are_macro_averages_by_step(study):
    drawing = draw_learning_curves({step: study.arms(step) for step in study.steps()}, made.NUM_SAMPLES)
    rows = {tuple(row[:4]): row[4:] for row in drawing.rows}
    for student in made.STUDENTS:
        for label in made.ARMS:
            for step in made.STEPS:
                counts = [[made.right(student, label, s, step, name) for s in made.SEEDS] for name in made.SETS]
                value, low, high, seeds = rows[student, label, "Mean@4", step]
                assert value == pytest.approx(100 * np.mean(counts) / made.NUM_SAMPLES)
                assert low < value < high
                assert seeds == 3
                assert rows[student, label, "Pass@4", step][0] == pytest.approx(100 * np.mean(np.array(counts) > 0))
        assert rows[student, "student", "Mean@4", 0][0] == pytest.approx(25)
        assert rows[student, "teacher", "Pass@4", ""][0] == pytest.approx(100)
    panels = drawing.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"{metric}@4, {student}" for student in made.STUDENTS for metric in ("Mean", "Pass")
    ]
    curve = next(line for line in panels[0].lines if len(line.get_xdata()) == 3)
    assert curve.get_xdata()[0] == 0  # from the untrained student on
    assert curve.get_ydata()[0] == pytest.approx(25)


def test_nothing_trained_is_refused():
    with pytest.raises(ValueError, match="no finished run of a trained arm"):
        draw_learning_curves({}, 8)
