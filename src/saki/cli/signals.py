"""SIGTERM leaves a command as Ctrl-C does: at once, with one sentence."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """While the block runs in the main thread, SIGTERM raises :class:`Terminated`; where it is ignored it stays so."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before == signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def exit_code(signum: int) -> int:
    """What a shell shows for a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + signum


def _raise(signum: int, frame: FrameType | None) -> None:
    raise Terminated
