"""Ctrl-C and SIGTERM: the step under way ends with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class StopOnSignal(TrainerCallback):
    """On SIGINT or SIGTERM, lets the step end, saves a checkpoint and stops; a second signal leaves at once.

    Handlers are set while training runs, in the main thread only, and put back afterwards. As a context manager it
    puts them back also when training raises. A signal that the process ignores stays ignored::

        with StopOnSignal() as stop:
            trainer = SakiTrainer(..., callbacks=[stop])
            trainer.train()
        if stop.stopped_by is not None:
            ...  # the run was cut short; train(resume_from_checkpoint=True) goes on

    Args:
        signals: What to listen to.

    Attributes:
        stopped_by: The signal that cut training short, with a checkpoint saved; None if it ran to its end.
    """

    def __init__(self, signals: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.signals = signals
        self.stopped_by: int | None = None
        self._received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopOnSignal:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the handlers."""
        self.stopped_by = self._received = None
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in self.signals:
            if signum not in self._before and signal.getsignal(signum) != signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._note)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask for a checkpoint and the end, if a signal has come to any rank."""
        self.stopped_by = _agreed(self._received, args)
        if self.stopped_by is not None:
            control.should_save = control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the handlers back."""
        self.restore()

    def restore(self) -> None:
        """Put back the handlers of before."""
        for signum, handler in self._before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._received is not None:
            self.restore()
            os.kill(os.getpid(), signum)  # whoever handled it before does so now
            return
        self._received = signum
        name = signal.Signals(signum).name
        # Not print: the signal may have come in the middle of another print, and streams refuse to be re-entered.
        os.write(2, f"\nsaki: {name}: this step ends with a checkpoint; a second signal leaves at once\n".encode())


def _agreed(received: int | None, args: TrainingArguments) -> int | None:
    """The signal, once any rank has it: all ranks must stop at the same step."""
    if args.world_size == 1:
        return received
    found = torch.tensor(received or 0, device=args.device)
    torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
    return int(found) or None
