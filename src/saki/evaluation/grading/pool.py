"""Workers that grade with a deadline for each answer; one that sticks is replaced and costs its deadline only."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, cast

from saki.evaluation.grading.comparison import Verdict

DEADLINE_SECONDS = 6.0
"""Wall seconds for one answer; nearly all take some hundredths."""

_START_SECONDS = 120.0
_GRACE_SECONDS = 2.0  # a worker ends itself at the deadline; the parent waits this much longer before it does


class GradingUnavailableError(ValueError):
    """Math-verify is not installed, or its workers do not start."""


def check_math_verify() -> None:
    """Refuse where the extra is missing.

    Raises:
        GradingUnavailableError: One sentence with the command that installs it.
    """
    if find_spec("math_verify") is None:
        raise GradingUnavailableError(
            "grading mathematics needs math-verify, which is not installed; run pip install 'saki[eval]' "
            "(the lab's own sets need nothing more)"
        )


def usable_cores() -> int:
    """Cores that this process may use; on systems that do not say, all of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class GradingPool:
    """Persistent grading processes, started on first use.

    Use it as a context manager, or call :meth:`close`.

    Args:
        num_workers: Processes; as many as there are cores if None.
        deadline: Wall seconds for one answer.

    Raises:
        GradingUnavailableError: If math-verify is missing.
        ValueError: If an argument is out of range.
    """

    def __init__(self, num_workers: int | None = None, deadline: float = DEADLINE_SECONDS) -> None:
        check_math_verify()
        self.num_workers = num_workers if num_workers is not None else usable_cores()
        if self.num_workers < 1 or deadline <= 0:
            raise ValueError(f"num_workers must be at least 1 and deadline above 0, got {num_workers} and {deadline}")
        self.deadline = deadline
        self._idle: list[_Worker] = []

    def grade(
        self,
        completions: Sequence[str],
        answers: Sequence[str],
        progress: Callable[[int, int], None] | None = None,
        **options: bool,
    ) -> list[Verdict]:
        """Grade completions, each against its answer.

        Args:
            completions: Texts.
            answers: As many right answers.
            progress: Called with (graded, in all) now and then.
            **options: Of :func:`saki.evaluation.grading.comparison.grade_completion`.

        Returns:
            One verdict each, in order.

        Raises:
            GradingUnavailableError: If workers do not start.
            ValueError: If there are not as many answers as completions.
        """
        if len(completions) != len(answers):
            raise ValueError(f"expected an answer for each completion, got {len(answers)} for {len(completions)}")
        tasks: SimpleQueue[int] = SimpleQueue()
        for index in range(len(completions)):
            tasks.put(index)
        verdicts: dict[int, Verdict] = {}
        failures: list[BaseException] = []
        stopped = threading.Event()

        def work() -> None:
            worker: _Worker | None = None
            try:
                while not stopped.is_set():
                    index = tasks.get_nowait()
                    if worker is None:
                        worker = self._idle.pop() if self._idle else _Worker()
                    task = {"completion": completions[index], "gold": answers[index], **options}
                    verdict = worker.grade(task, self.deadline)
                    if verdict is None:
                        worker.kill()
                        worker, verdict = None, "timeout"
                    verdicts[index] = verdict
            except Empty:
                pass
            except BaseException as error:
                failures.append(error)
                stopped.set()
            finally:
                if worker is not None:
                    self._idle.append(worker)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(self.num_workers, len(completions)))]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
                    if progress is not None:
                        progress(len(verdicts), len(completions))
        except BaseException:
            stopped.set()
            for thread in threads:
                thread.join(self.deadline + _GRACE_SECONDS)
            self.close()
            raise
        if failures:
            self.close()
            raise failures[0]
        return [verdicts[index] for index in range(len(completions))]

    def close(self) -> None:
        """End all workers."""
        while self._idle:
            self._idle.pop().kill()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Worker:
    """One process of ``worker.py``."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C on the terminal does not reach it
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        first = self._reply(_START_SECONDS)
        if first is None or "error" in first:
            self.kill()
            reason = first["error"] if first else "no sign of life"
            raise GradingUnavailableError(f"the grading workers do not start ({reason}); check math-verify")

    def grade(self, task: dict[str, Any], deadline: float) -> Verdict | None:
        """The verdict, or None where the worker is stuck or gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps({**task, "deadline": deadline}) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        reply = self._reply(deadline + _GRACE_SECONDS)
        return None if reply is None else cast("Verdict", reply["verdict"])

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        return json.loads(line) if line else None

    def kill(self) -> None:
        """End the process and wait for it."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
