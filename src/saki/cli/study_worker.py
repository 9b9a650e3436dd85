"""A worker process of ``saki study``: runs come in as lines of JSON, events go out as lines of JSON.

One process carries out many runs, so that imports are paid once. It ends when its input ends, also in the middle of a
run: a study that is killed leaves no worker behind, and the run goes on from its checkpoint next time.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TextIO

PROGRESS_SECONDS = 0.5
_INPUT_ENDED = 3


def main() -> None:
    """Take runs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints of libraries must not look like events
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)

    import torch
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(1)
    disable_progress_bar()
    for noisy in ("httpx", "datasets", "fsspec", "urllib3", "transformers", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    while True:
        _carry_out(json.loads(tasks.get()), events)


def _read(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(_INPUT_ENDED)


def _carry_out(task: dict[str, str], events: TextIO) -> None:
    from saki.cli.study_files import FAILURE
    from saki.cli.study_run import execute
    from saki.config.study import StudyRun

    folder = Path(task["folder"])
    last = 0.0

    def report(phase: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_SECONDS or done == total:
            last = time.monotonic()
            _send(events, {"event": "progress", "phase": phase, "done": done, "total": total})

    logging.getLogger(__name__).info("begin %s", folder)
    try:
        execute(StudyRun.from_json(json.loads(task["run"])), folder, report)
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FAILURE).write_text(traceback.format_exc())
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _send(events, {"event": "failed", "reason": reason})
    else:
        _send(events, {"event": "finished"})


def _send(events: TextIO, event: dict[str, object]) -> None:
    events.write(json.dumps(event) + "\n")
    events.flush()


if __name__ == "__main__":
    main()
