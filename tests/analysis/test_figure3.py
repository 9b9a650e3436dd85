"""Figure 3: its bars are the paired differences of the arms, set by set and on average."""

from __future__ import annotations

import numpy as np
import pytest

from saki.analysis.figure3 import draw_figure3
from saki.analysis.study_folder import read_study_folder
from tests.analysis import made_study as made


@pytest.fixture(scope="module")
def students(tmp_path_factory):
    return read_study_folder(made.make_study(tmp_path_factory.mktemp("figure3") / "study")).arms()


def mean_percent(student, label, names=made.SETS, step=20, of=np.mean):
    """Over seeds, sets and problems; of the share of right samples, or of whether any is right."""
    counts = [[made.right(student, label, seed, step, name) for seed in made.SEEDS] for name in names]
    shares = np.array(counts) / made.NUM_SAMPLES if of is np.mean else np.array(counts) > 0
    return 100 * shares.mean()


def test_every_bar_is_what_the_counts_give(students):
    drawing = draw_figure3(students, "saki", "trb", "random_tm", made.NUM_SAMPLES)
    rows = {(panel, student, metric, what): value for panel, student, metric, what, value, *_ in drawing.rows}
    for student in made.STUDENTS:
        for name in made.SETS:
            gain = mean_percent(student, "saki", [name]) - mean_percent(student, "trb", [name])
            assert rows["a", student, "Mean@4", f"saki - trb on {name}"] == pytest.approx(gain)
        for metric, of in (("Mean@4", np.mean), ("Pass@4", np.any)):
            trb, random, saki = (mean_percent(student, label, of=of) for label in made.ARMS)
            assert rows["b", student, metric, "trb"] == pytest.approx(trb)
            assert rows["b", student, metric, "saki"] == pytest.approx(saki)
            assert rows["c", student, metric, "TRB → Random-TM"] == pytest.approx(random - trb)
            assert rows["c", student, metric, "Random-TM → SAKI"] == pytest.approx(saki - random)
    assert rows["a", "lab-b", "Mean@4", "saki - trb on gcd"] < 0
    assert all(low <= value <= high for *_, value, low, high, seeds in drawing.rows if seeds == 3)

    sets, averages, parts = drawing.figure.axes
    drawn = [bar.get_height() for bar in sets.patches]
    assert drawn == pytest.approx([rows[key] for key in rows if key[0] == "a"])
    heights = [bar.get_height() for bar in averages.patches]
    assert heights == pytest.approx([rows[key] for key in rows if key[0] == "b" and " - " not in key[3]])
    first, second = parts.patches[:2]  # the second part begins where the first ends
    assert second.get_y() == pytest.approx(first.get_height())


def test_panel_c_is_left_out_without_the_control(students):
    without = {student: {k: v for k, v in arms.items() if k != "random_tm"} for student, arms in students.items()}
    drawing = draw_figure3(without, "saki", "trb", "random_tm", 4)
    assert len(drawing.figure.axes) == 2
    assert {row[0] for row in drawing.rows} == {"a", "b"}


def test_arms_that_are_not_there_are_refused(students):
    with pytest.raises(ValueError, match="no student has both skd and trb with a common seed, only random_tm, saki"):
        draw_figure3(students, "skd", "trb", "random_tm", 4)
    with pytest.raises(ValueError, match="no finished run of a trained arm"):
        draw_figure3({}, "saki", "trb", "random_tm", 4)
