"""Tables of a study in three formats, from made-up answers whose values are known."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from saki.analysis.study_results import Sample
from saki.analysis.study_tables import steps_tables, study_tables, write_tables


def arm(mean, seeds=(0, 1, 2), noise=0.0):
    """Two sets of ten problems; ``mean`` is the share of right samples in both."""
    rng = np.random.default_rng(7)
    values = {
        name: np.clip(np.full((len(seeds), 10), mean) + noise * rng.normal(size=(len(seeds), 1)), 0, 1)
        for name in ("sum_3", "gcd")
    }
    return Sample(tuple(seeds), values, {name: (value > 0.25).astype(float) for name, value in values.items()})


@pytest.fixture
def arms():
    return {
        "teacher": arm(0.9, seeds=(0,)),
        "student": arm(0.1, seeds=(0,)),
        "opd": arm(0.2, noise=0.02),
        "trb": arm(0.3, noise=0.01),
        "random_tm": arm(0.35),
        "saki": arm(0.4, noise=0.03),
        "teacher_sampled": arm(0.25),
    }


def rows(table):
    return {row[0]: row[1:] for row in csv.reader(io.StringIO(table.csv()))}


def test_the_papers_tables_are_there(arms):
    tables = {table.name: table for table in study_tables({"lab": arms}, "trb", 8)}
    assert list(tables) == ["table1_mean", "table2_pass", "table6_placement", "table8_corrections", "differences"]
    first = rows(tables["table1_mean"])
    assert first["Method"] == ["sum_3", "gcd", "Average", "95% interval", "seeds"]
    assert first["Teacher"][:3] == ["90.0", "90.0", "90.0"]
    assert first["Student (lab)"][-1] == "1"
    assert rows(tables["table2_pass"])["TRB"][2] == "100.0"
    assert list(rows(tables["table6_placement"])) == [
        "Method",
        "TRB",
        "Random-TM",
        "SAKI",
    ]
    assert list(rows(tables["table8_corrections"])) == ["Method", "TRB", "Teacher-sampled", "SAKI"]


def test_best_and_second_best_of_the_trained_are_marked(arms):
    table = study_tables({"lab": arms}, "trb", 8)[0]
    text = table.markdown()
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert "**" in lines["SAKI"]
    assert "<u>" in lines["Random-TM"]
    assert "**" not in lines["Teacher"]
    assert "\\textbf" in table.latex()
    assert "\\underline" in table.latex()


def test_marks_follow_the_values_as_shown(arms):
    """Two that read the same share the mark, by whatever noise of rounding they differ, and leave no second."""
    close = {"opd": arm(0.3), "trb": arm(0.3 + 1e-9), "saki": arm(0.2), "skd": arm(0.1)}
    text = study_tables({"lab": close}, "trb", 8)[0].markdown()
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert lines["OPD"].count("**30.0**") == lines["TRB"].count("**30.0**") == 3
    assert "<u>" not in text


def test_tables_of_an_earlier_state_go_and_other_files_stay(arms, tmp_path):
    write_tables(tmp_path, study_tables({"one": arms}, "trb", 8))
    (tmp_path / "notes.md").write_text("mine")
    tables = study_tables({"one": arms, "two": arms}, "trb", 8)
    write_tables(tmp_path, tables)
    assert {path.name for path in tmp_path.glob("*.md")} == {"notes.md", *(f"{table.name}.md" for table in tables)}


def test_differences_are_paired_and_carry_the_power_note(arms):
    table = study_tables({"lab": arms}, "trb", 8)[-1]
    found = rows(table)
    # opd and trb share their noise up to a factor: 0.02 - 0.01 of the same draws.
    rng = np.random.default_rng(7)
    draws = np.stack([rng.normal(size=(3, 1)) for _ in range(2)])  # three seeds in each of two sets
    expected = 100 * float((0.2 - 0.3) + 0.01 * draws.mean())
    assert found["OPD - TRB"][0] == f"{expected:+.2f}"
    assert "SAKI - OPD" in found
    assert "SAKI - Random-TM" in found
    assert found["OPD - TRB"][-1] == "3"
    assert "80% power" in table.notes[-1]
    assert "known badly" in table.notes[-1]
    single = {label: each.restrict([0]) for label, each in arms.items()}
    assert "run at least two" in study_tables({"lab": single}, "trb", 8)[-1].notes[-1]


def test_latex_escapes_and_every_format_is_written(arms, tmp_path):
    tables = study_tables({"lab": arms}, "trb", 8)
    assert "sum\\_3" in tables[0].latex()
    assert "accuracy (\\%)" in tables[0].latex()
    paths = write_tables(tmp_path / "tables", tables)
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        f"{table.name}.{ending}" for table in tables for ending in ("md", "tex", "csv")
    }
    assert all(path.read_text().startswith("**") for path in paths)


def test_two_students_share_the_main_tables(arms):
    tables = study_tables({"one": arms, "two": arms}, "trb", 8)
    names = [table.name for table in tables]
    assert names.count("table1_mean") == 1
    assert {"differences_one", "differences_two", "table6_placement_two"} <= set(names)
    assert {"SAKI (one)", "SAKI (two)"} <= set(rows(tables[0]))


def test_a_table_over_steps(arms):
    early = {label: each for label, each in arms.items() if label != "saki"}
    (table,) = steps_tables({50: {"lab": arms}, 25: {"lab": early}}, 8)
    found = rows(table)
    assert found["Method"] == [
        "Mean@8, step 25",
        "Mean@8, step 50",
        "Pass@8, step 25",
        "Pass@8, step 50",
        "seeds",
    ]
    assert "Teacher" not in found
    assert found["SAKI"][0] == found["SAKI"][2] == "-"  # not evaluated at step 25
    assert found["Random-TM"] == ["35.0 [35.0, 35.0]"] * 2 + ["100.0 [100.0, 100.0]"] * 2 + ["3"]
    assert "**" in table.markdown()
    assert steps_tables({50: {"lab": arms}}, 8) == []
    both = steps_tables({step: {"one": arms, "two": arms} for step in (1, 2)}, 8)
    assert [each.name for each in both] == ["steps_one", "steps_two"]
