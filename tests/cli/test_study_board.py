"""The live table of a study: all arms where there is room, and never more lines than a terminal can redraw."""

from __future__ import annotations

import io
import os
import time
from collections import deque

import pytest

from saki.cli import study_board
from saki.cli.study_board import Board
from saki.cli.study_pool import PoolState, Progress
from saki.config.study import read_study
from tests.cli.test_study import write_study


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        return 2


@pytest.fixture
def many(tmp_path):
    """20 arms x 2 seeds: arm 0 done, arm 17 half done, arm 18 running, arm 19 failed."""
    methods = [{"method": "opd", "label": f"a-label-of-some-twenty-letters-{k}"} for k in range(20)]
    runs = read_study(write_study(tmp_path, methods=methods, baselines=False)).runs
    by_arm = [[run for run in runs if run.label.endswith(f"-{k}")] for k in range(20)]
    state = PoolState(deque(run for arm in by_arm[1:17] for run in arm))
    state.finished = [(by_arm[17][0], 1.0)]
    state.running = {0: Progress(by_arm[18][0], time.monotonic(), "training", 1, 4)}
    state.failed = [(by_arm[19][0], "ValueError: no")]
    return runs, by_arm[0], state


def test_columns_stand_below_each_other_however_long_the_labels(many):
    runs, done, state = many
    lines = Board(runs, done, 1).lines(state)
    assert len(lines) == 1 + 20 + 1 + 1
    assert len({len(line) for line in lines[:21]}) == 1


@pytest.mark.parametrize("rows", [8, 12, 24])
def test_a_table_that_is_redrawn_fits_its_terminal(many, monkeypatch, rows):
    runs, done, state = many
    monkeypatch.setattr(study_board.os, "get_terminal_size", lambda descriptor: os.terminal_size((60, rows)))
    stream = Terminal()
    board = Board(runs, done, 1, stream=stream)
    board.show(state)
    lines = stream.getvalue().splitlines()
    assert lines.pop(0).startswith("failed: lab-student/")
    assert len(lines) == min(rows - 1, 23)
    assert max(map(len, lines)) < 60
    shown = "\n".join(lines)
    if rows < 24:
        left_out = next(line for line in lines if line.startswith("..."))
        assert int(left_out.split()[2]) == 20 - (len(lines) - 4)
    assert all(f"letters-{arm} " in shown for arm in (17, 18, 19))  # there is room for three beside the dots
    board.show(state, last=True)  # in full, and not cut
    assert len(stream.getvalue().split("\x1b[J")[1].splitlines()) == 23


@pytest.mark.parametrize(("jobs", "most"), [(24, 23), (8, 9), (2, 6), (2, 5), (1, 2), (1, 1)])
def test_many_running_runs_leave_room_for_a_last_line(many, jobs, most):
    runs, done, state = many
    run = state.running[0].run
    state.running = {worker: Progress(run, time.monotonic(), "training", 1, 4) for worker in range(jobs)}
    lines = Board(runs, done, jobs).lines(state, most)
    assert len(lines) == (most if most > 5 else 1)
    assert f"{jobs} running, 1 failed" in lines[-1]
    if most in (23, 9):
        shown = sum(line.startswith("  a-label") for line in lines)
        assert f"  ... and {jobs - shown} more running" in lines


def test_the_terminal_is_that_of_the_stream(many, monkeypatch):
    runs, done, state = many
    stream = io.StringIO()  # without a descriptor
    stream.isatty = lambda: True
    monkeypatch.setattr(study_board.shutil, "get_terminal_size", lambda: os.terminal_size((60, 9)))
    Board(runs, done, 1, stream=stream).show(state)
    assert len(stream.getvalue().splitlines()) == 1 + 8
