"""Reading metrics: truncated tails, resumes, values that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest

from saki.analysis import merge_steps, read_metrics, series


def write(path, text: str | bytes):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_come_in_the_order_of_the_file(tmp_path):
    rows = read_metrics(write(tmp_path / "metrics.jsonl", '{"step": 1, "a": 2}\n\n{"step": 2}\n'))
    assert rows == [{"step": 1, "a": 2}, {"step": 2}]
    assert rows.note is None


@pytest.mark.parametrize("tail", [b'{"step": 2, "a"', b'{"st', b"{", b'{"step": 2, "\xc3', b'{"a": 1}', b"2"])
def test_a_truncated_last_line_is_left_out_and_named(tmp_path, tail):
    rows = read_metrics(write(tmp_path / "metrics.jsonl", b'{"step": 1}\n' + tail))
    assert rows == [{"step": 1}]
    assert rows.note == "line 2, the last one of metrics.jsonl, is truncated and was left out"


def test_a_bad_line_in_the_middle_is_refused(tmp_path):
    path = write(tmp_path / "metrics.jsonl", '{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2 is not a JSON object with an integer step"):
        read_metrics(path)


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="no metrics at"):
        read_metrics(tmp_path / "metrics.jsonl")
    for text in ("", "\n\n", '{"step": '):
        with pytest.raises(ValueError, match="is empty"):
            read_metrics(write(tmp_path / "metrics.jsonl", text))


def test_rows_of_one_step_are_joined():
    rows = [{"step": 1, "a": 1, "b": 1}, {"step": 1, "b": 2}, {"step": 2, "a": 3}]
    assert merge_steps(rows) == [{"step": 1, "a": 1, "b": 2}, {"step": 2, "a": 3}]


def test_a_resume_replaces_what_was_logged_from_its_step_on():
    first = [{"step": step, "a": step, "old": True} for step in range(1, 8)]
    resumed = [{"step": step, "a": 10 * step} for step in (5, 6)]
    merged = merge_steps(first + resumed)
    assert [row["step"] for row in merged] == [1, 2, 3, 4, 5, 6]
    assert [row["a"] for row in merged] == [1, 2, 3, 4, 50, 60]
    assert "old" not in merged[4]


def test_series_keeps_steps_and_marks_what_is_no_finite_number():
    rows = [
        {"step": 1, "a": 1},
        {"step": 2},
        {"step": 3, "a": float("inf")},
        {"step": 4, "a": None},
        {"step": 5, "a": 2},
    ]
    steps, values = series(rows, "a")
    np.testing.assert_array_equal(steps, [1, 3, 4, 5])
    np.testing.assert_array_equal(values, [1, np.nan, np.nan, 2])
    assert series(rows, "b")[0].size == 0
