"""Tables in text and Markdown: every number where it belongs, and never too wide."""

from __future__ import annotations

import json

import numpy as np
import pytest

from saki.evaluation import EvaluationResult, SetResult, markdown_table, text_table


def result(share: float, names: tuple[str, ...] = ("sum_3", "gcd"), k: int | None = None, timeouts: int = 0):
    correct = np.zeros((10, 8), dtype=bool)
    correct[: round(10 * share)] = True
    return EvaluationResult.from_sets(
        [SetResult.from_correct(n, correct, k=k, truncated=0.125, timeouts=timeouts, num_tokens=9) for n in names]
    )


def test_text_table_holds_all_numbers_in_at_most_100_columns():
    names = ("sum_3", "a-benchmark-with-quite-a-long-name")
    text = text_table(
        {"student before": result(0.1, names), "student after": result(0.5, names), "teacher": result(1.0, names)}
    )
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].endswith(" teacher")
    assert lines[1].split() == ["benchmark"] + ["Mean@8", "Pass@8"] * 3
    assert lines[3].split() == ["sum_3", "10.0", "10.0", "50.0", "50.0", "100.0", "100.0"]
    average = next(line for line in lines if line.startswith("macro average"))
    assert average.split()[2:] == ["10.0", "10.0", "50.0", "50.0", "100.0", "100.0"]
    interval = lines[lines.index(average) + 1]
    low, high = result(0.5, names).mean_at_k.interval.to_json()
    assert interval.split()[4] == f"{100 * low:.1f}-{100 * high:.1f}"
    assert interval.split()[-1] == "100.0-100.0"
    assert "teacher: 160 samples, 12.5% cut by the length cap" in text


def test_results_and_their_json_give_the_same_table():
    after = result(0.3)
    stored = json.loads(json.dumps(after.to_json()))
    assert text_table({"after": after}) == text_table({"after": stored})
    assert markdown_table({"after": after}) == markdown_table({"after": stored})


def test_markdown_table_has_one_cell_a_number():
    table = markdown_table({"before": result(0.1), "a|b": result(0.5)}).splitlines()
    assert table[0] == "| benchmark | before Mean@8 | before Pass@8 | a\\|b Mean@8 | a\\|b Pass@8 |"
    assert table[2] == "| sum_3 | 10.0 | 10.0 | 50.0 | 50.0 |"
    assert table[4].startswith("| macro average [95% interval] | **10.0** [")


def test_gradings_out_of_time_are_noted():
    assert "2 gradings ran out of time (counted as wrong)" in text_table({"after": result(0.5, timeouts=1)})


def test_results_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="at least one result"):
        text_table({})
    with pytest.raises(ValueError, match="cannot be compared"):
        text_table({"before": result(0.1), "after": result(0.1, names=("sum_3",))})
    with pytest.raises(ValueError, match="one k"):
        text_table({"before": result(0.1), "after": result(0.1, k=4)})
