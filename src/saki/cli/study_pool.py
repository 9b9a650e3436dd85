"""Worker processes of a study, and who does what."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saki.config.study import StudyRun

POLL_SECONDS = 1.0
WORKER_COMMAND = (sys.executable, "-m", "saki.cli.study_worker")


@dataclass
class Progress:
    """Where a running run is.

    Attributes:
        run: The run.
        begun: Monotonic time of its beginning.
        phase: What it does.
        done: Steps or samples done.
        total: Of how many.
    """

    run: StudyRun
    begun: float
    phase: str = "starting"
    done: int = 0
    total: int = 0


@dataclass
class PoolState:
    """What a pool has done and has to do.

    Attributes:
        waiting: Runs not begun.
        running: By worker.
        finished: Runs finished by this pool, with wall seconds.
        failed: Runs that failed, with the reason.
    """

    waiting: deque[StudyRun]
    running: dict[int, Progress] = field(default_factory=dict)
    finished: list[tuple[StudyRun, float]] = field(default_factory=list)
    failed: list[tuple[StudyRun, str]] = field(default_factory=list)


class WorkerPool:
    """Carries out runs in child processes, one run at a time in each, one thread a process.

    Args:
        runs: What to do, in this order.
        folder: Of the study: runs go to ``runs/``, what workers print to ``logs/``.
        jobs: Processes at once.
        command: Starts a worker.
    """

    def __init__(
        self, runs: Iterable[StudyRun], folder: Path, jobs: int, command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self.state = PoolState(deque(runs))
        self._folder, self._jobs, self._command = folder, jobs, command
        self._events: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._listeners: list[threading.Thread] = []
        self._next_worker = 0

    def carry_out(self, on_change: Callable[[PoolState], None]) -> None:
        """Work until nothing is left; ``on_change`` hears of every event, and at least once a second.

        A worker that dies fails its run alone, and another takes its place.
        """
        try:
            while self.state.waiting or self.state.running:
                while self.state.waiting and len(self._workers) < min(
                    self._jobs, len(self.state.waiting) + len(self.state.running)
                ):
                    self._hand_out(self._start())
                try:
                    worker, event = self._events.get(timeout=POLL_SECONDS)
                    self._take(worker, event)
                except queue.Empty:
                    pass
                on_change(self.state)
        finally:
            self._stop()

    def _start(self) -> int:
        worker = self._next_worker
        self._next_worker += 1
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with (logs / f"worker-{worker}.log").open("a") as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._workers[worker] = process
        listener = threading.Thread(target=self._listen, args=(worker, process), daemon=True)
        listener.start()
        self._listeners.append(listener)
        return worker

    def _listen(self, worker: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._events.put((worker, json.loads(line)))
        process.wait()
        self._events.put((worker, {"event": "gone", "code": process.returncode}))

    def _hand_out(self, worker: int) -> None:
        run = self.state.waiting.popleft()
        self.state.running[worker] = Progress(run, time.monotonic())
        stdin = self._workers[worker].stdin
        assert stdin is not None
        task = {"run": json.dumps(run.to_json()), "folder": str(self._folder / "runs" / run.folder)}
        with contextlib.suppress(BrokenPipeError):  # a worker's end comes as an event
            stdin.write(json.dumps(task) + "\n")
            stdin.flush()

    def _take(self, worker: int, event: dict[str, Any]) -> None:
        progress = self.state.running.get(worker)
        if event["event"] == "gone":
            _close_input(self._workers.pop(worker))
            if progress is not None:
                del self.state.running[worker]
                reason = f"its process ended with code {event['code']}; see logs/worker-{worker}.log"
                self.state.failed.append((progress.run, reason))
            return
        assert progress is not None
        if event["event"] == "progress":
            progress.phase, progress.done, progress.total = event["phase"], event["done"], event["total"]
            return
        del self.state.running[worker]
        if event["event"] == "finished":
            self.state.finished.append((progress.run, time.monotonic() - progress.begun))
        else:
            self.state.failed.append((progress.run, event["reason"]))
        if self.state.waiting:
            self._hand_out(worker)

    def _stop(self) -> None:
        for process in self._workers.values():
            _close_input(process)  # a worker ends with its input
        for process in self._workers.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for listener in self._listeners:
            listener.join()


def _close_input(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # what was not sent is of no use to a worker that is gone
        process.stdin.close()
