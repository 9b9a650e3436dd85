"""A grading process: one task a line on stdin, one verdict a line on stdout. Started by its path, see ``pool.py``."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

MEMORY_BYTES = 4 << 30
"""Address space of a worker: a power tower is refused its memory before the machine runs out of it."""


def serve() -> None:
    """Answer tasks until stdin ends.

    A task that outlives its deadline ends the process: the kernel does it (SIGALRM, default action), so one long
    operation that never returns to Python cannot stand in the way, and no worker outlives a killed parent by more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # what libraries print must not mix with replies
    os.dup2(silence, 2)

    def reply(values: dict[str, Any]) -> None:
        replies.write(json.dumps(values) + "\n")
        replies.flush()

    try:
        grade = _grader()
    except Exception as error:  # whatever a broken installation raises is the parent's to tell
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    with suppress(ValueError, OSError):  # macOS knows the limit and refuses to set it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    reply({"ready": True})
    for line in sys.stdin:
        task = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, task.pop("deadline"))
        verdict = _judged(grade, task)
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply({"verdict": verdict})


def _judged(grade: Callable[..., str], task: dict[str, Any]) -> str:
    try:
        return grade(**task)
    except MemoryError:
        return "timeout"  # it would not have ended in time either
    except Exception:  # the parsers raise many unrelated types on hostile text
        return "unparsed"


def _grader() -> Callable[..., str]:
    """The comparison, without the packages above it, whose own ``__init__`` take seconds to import torch."""
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here.parents[2]))
    for name, folder in (("saki.evaluation", here.parent), ("saki.evaluation.grading", here)):
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    import logging

    logging.disable(logging.CRITICAL)
    from saki.evaluation.grading.comparison import compare_answers, grade_completion

    assert compare_answers(r"\frac{x}{2} + 1", r"1 + x / 2") == "correct"  # loads what the first answer would wait for
    return grade_completion


if __name__ == "__main__":
    serve()
