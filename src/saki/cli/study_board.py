"""The live table of a study: what is done, what runs, what is left, and how long it may take."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from saki.cli.study_pool import PoolState
from saki.config.study import StudyRun, folder_name

REDRAW_SECONDS, LINE_SECONDS = 2.0, 60.0
FEWEST_LINES = 6
"""Least height of a table that is redrawn in place; below it there is one line."""


class Board:
    """Shows a pool's state: redrawn in place on a terminal, a line a minute elsewhere.

    Args:
        runs: Runs of the study, or of a stage of it.
        done: Runs that were finished before.
        jobs: Processes at once.
        stream: Where to.
    """

    def __init__(
        self, runs: Sequence[StudyRun], done: Sequence[StudyRun], jobs: int, stream: TextIO | None = None
    ) -> None:
        self._runs, self._done, self._jobs = runs, done, jobs
        self._stream = stream or sys.stderr
        self._begin = time.monotonic()
        self._shown_at = -1e9
        self._lines_shown = 0
        self._failures_shown = 0

    def show(self, state: PoolState, last: bool = False) -> None:
        """Show the state, if it is time; failures are said at once."""
        for run, reason in state.failed[self._failures_shown :]:
            self._clear()
            print(f"failed: {run.folder}: {reason}", file=self._stream, flush=True)
        self._failures_shown = len(state.failed)
        terminal = self._stream.isatty()
        if not last and time.monotonic() - self._shown_at < (REDRAW_SECONDS if terminal else LINE_SECONDS):
            return
        self._shown_at = time.monotonic()
        if terminal and not last:
            columns, rows = _terminal_size(self._stream)
            lines = [line[: columns - 1] for line in self.lines(state, most=rows - 1)]
        else:
            lines = self.lines(state) if last else self.lines(state)[-1:]
        self._clear()
        print("\n".join(lines), file=self._stream, flush=True)
        self._lines_shown = len(lines) if terminal and not last else 0

    def lines(self, state: PoolState, most: int | None = None) -> list[str]:
        """One line an arm, one a running run, one for the whole.

        Args:
            state: The pool's state.
            most: Most lines, if they are to be redrawn in place: a terminal cannot go back beyond its first line. Arms
                are left out as needed, first those of which no run is done or all are.
        """
        finished = [*self._done, *(run for run, _ in state.finished)]
        failed = [run for run, _ in state.failed]
        running = [progress.run for progress in state.running.values()]
        table: dict[tuple[str, str], dict[str, int]] = {}
        for name, runs in (("all", self._runs), ("done", finished), ("failed", failed), ("running", running)):
            for run in runs:
                row = table.setdefault((folder_name(run.student), run.label), {})
                row[name] = row.get(name, 0) + 1
        now = time.monotonic()
        below: list[str] = []
        for progress in state.running.values():
            run = progress.run
            below.append(
                f"  {run.label} seed {run.seed} of {folder_name(run.student)}: {progress.phase} "
                f"{progress.done}/{progress.total}, {_duration(now - progress.begun)}"
            )
        left = self.seconds_left(state)
        below.append(
            f"{len(finished)} of {len(self._runs)} runs finished, {len(running)} running, {len(failed)} failed, "
            f"{len(state.waiting)} waiting; {_duration(now - self._begin)} so far"
            + (f", about {_duration(left)} left" if left is not None else "")
        )
        if most is None:
            return [*_table(table, len(table)), *below]
        if most < FEWEST_LINES:
            return below[-1:]
        if len(below) > most - 3:  # beside a head and two lines of arms
            kept = most - 5
            below = [*below[:kept], f"  ... and {len(below) - 1 - kept} more running", below[-1]]
        return [*_table(table, most - len(below) - 1), *below]

    def seconds_left(self, state: PoolState) -> float | None:
        """Wall seconds left, from the runs finished so far; None before the first."""
        trained = [seconds for run, seconds in state.finished if run.trains]
        if not trained:
            return None
        mean = sum(trained) / len(trained)
        now = time.monotonic()
        open_ = sum(max(0.0, mean - (now - progress.begun)) for progress in state.running.values())
        return (mean * sum(run.trains for run in state.waiting) + open_) / max(1, self._jobs)

    def _clear(self) -> None:
        if self._lines_shown:
            self._stream.write(f"\x1b[{self._lines_shown}A\x1b[J")
            self._lines_shown = 0


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of the terminal behind a stream."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = shutil.get_terminal_size()
    return size.columns, size.lines


def _table(arms: Mapping[tuple[str, str], Mapping[str, int]], room: int) -> list[str]:
    """A head, and a line an arm; without room for all, the arms that change first and a line that counts the others."""

    def rank(arm: tuple[str, str]) -> int:
        counts = arms[arm]
        if counts.get("running") or counts.get("failed"):
            return 0
        return 1 if 0 < counts.get("done", 0) < counts.get("all", 0) else 2

    shown = set(arms) if len(arms) <= room else set(sorted(arms, key=rank)[: room - 1])
    width = [max(len(arm[place]) for arm in (("student", "method"), *arms)) for place in (0, 1)]

    def line(student: str, label: str, *counts: str) -> str:
        return f"{student:{width[0]}}  {label:{width[1]}} {counts[0]:>9} {counts[1]:>8} {counts[2]:>7}"

    lines = [line("student", "method", "done", "running", "failed")]
    for arm, counts in arms.items():
        if arm in shown:
            done = f"{counts.get('done', 0)}/{counts.get('all', 0)}"
            lines.append(line(*arm, done, str(counts.get("running", 0)), str(counts.get("failed", 0))))
    if len(shown) < len(arms):
        lines.append(f"... and {len(arms) - len(shown)} more")
    return lines


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
