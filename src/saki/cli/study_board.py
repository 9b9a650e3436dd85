"""The live table of a study: what is done, what runs, what is left, and how long it may take."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from saki.cli.study_pool import PoolState
from saki.config.study import StudyRun, folder_name

REDRAW_SECONDS, LINE_SECONDS = 2.0, 60.0


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
        lines = self.lines(state) if terminal or last else self.lines(state)[-1:]
        self._clear()
        print("\n".join(lines), file=self._stream, flush=True)
        self._lines_shown = len(lines) if terminal and not last else 0

    def lines(self, state: PoolState) -> list[str]:
        """One line an arm, one a running run, one for the whole."""
        finished = [*self._done, *(run for run, _ in state.finished)]
        failed = [run for run, _ in state.failed]
        running = [progress.run for progress in state.running.values()]
        table: dict[tuple[str, str], dict[str, int]] = {}
        for name, runs in (("all", self._runs), ("done", finished), ("failed", failed), ("running", running)):
            for run in runs:
                row = table.setdefault((folder_name(run.student), run.label), {})
                row[name] = row.get(name, 0) + 1
        lines = [f"{'student':20} {'method':24} {'done':>9} {'running':>8} {'failed':>7}"]
        lines += [_row(student, label, counts) for (student, label), counts in table.items()]
        now = time.monotonic()
        for progress in state.running.values():
            run = progress.run
            lines.append(
                f"  {run.label} seed {run.seed} of {folder_name(run.student)}: {progress.phase} "
                f"{progress.done}/{progress.total}, {_duration(now - progress.begun)}"
            )
        left = self.seconds_left(state)
        lines.append(
            f"{len(finished)} of {len(self._runs)} runs finished, {len(running)} running, {len(failed)} failed, "
            f"{len(state.waiting)} waiting; {_duration(now - self._begin)} so far"
            + (f", about {_duration(left)} left" if left is not None else "")
        )
        return lines

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


def _row(student: str, label: str, counts: Mapping[str, int]) -> str:
    done = f"{counts.get('done', 0)}/{counts.get('all', 0)}"
    return f"{student:20} {label:24} {done:>9} {counts.get('running', 0):>8} {counts.get('failed', 0):>7}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
