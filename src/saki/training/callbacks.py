"""Callbacks that every run has."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from saki.files import append_text


class MetricsFileCallback(TrainerCallback):
    """Appends each log to ``metrics.jsonl``, one JSON object a line, each line whole or not at all.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append one line; the library's closing summary is no step and is left out."""
        if not state.is_world_process_zero or logs is None or "train_runtime" in logs:
            return
        append_text(self.path, json.dumps({"step": state.global_step, **logs}) + "\n")


class ConsoleCallback(TrainerCallback):
    """The run on the screen: step, rate, time left, and the few figures that tell how it goes.

    A terminal gets one bar; a file or a pipe gets a line at each log of the run, since a bar there is one endless line.

    Args:
        shown: Metrics to show: key, label and format.
        stream: Where to; by default the standard error of the moment.
    """

    SHOWN = (
        ("loss", "loss", "{:.3f}"),
        ("rollout/kl_to_teacher", "KL", "{:.3f}"),
        ("rollout/correction_rate", "corrected", "{:.2%}"),
        ("rollout/mean_length", "length", "{:.0f}"),
        ("time/tokens_per_s", "tokens/s", "{:,.0f}"),
    )

    def __init__(self, shown: tuple[tuple[str, str, str], ...] = SHOWN, stream: TextIO | None = None) -> None:
        self.shown = shown
        self.bar: Any = None
        self._given = stream
        self._begin: tuple[float, int] | None = None

    @property
    def _stream(self) -> TextIO:
        return self._given or sys.stderr

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, on a terminal."""
        if not state.is_world_process_zero:
            return
        self._begin = time.perf_counter(), state.global_step
        if self._stream.isatty():
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit=" steps",
                dynamic_ncols=True,
                file=self._stream,
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance it."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the newest figures; an evaluation gets a line of its own."""
        if self._begin is None or logs is None:
            return
        shown = {label: form.format(logs[name]) for name, label, form in self.shown if name in logs}
        if shown and self.bar is not None:
            self.bar.set_postfix(shown, refresh=False)
        elif shown:
            self._write("  ".join([self._progress(state), *(f"{label} {value}" for label, value in shown.items())]))
        evaluation = {name: value for name, value in logs.items() if name.startswith("eval/")}
        if evaluation:
            self._write(f"step {state.global_step}: " + ", ".join(f"{k} {v:.4g}" for k, v in evaluation.items()))

    def _progress(self, state: TrainerState) -> str:
        """Step, rate and time left, from the steps that this process has made."""
        assert self._begin is not None
        begin, first = self._begin
        seconds, done = time.perf_counter() - begin, state.global_step - first
        width = len(str(state.max_steps))
        text = f"step {state.global_step:{width}}/{state.max_steps}"
        if done <= 0 or seconds <= 0:
            return text
        rate = f"{done / seconds:.2f} steps/s" if done >= seconds else f"{seconds / done:.2f} s/step"
        return f"{text}  {rate}  left {tqdm.format_interval((state.max_steps - state.global_step) * seconds / done)}"

    def _write(self, line: str) -> None:
        if self.bar is not None:
            self.bar.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Close the bar, also when training was cut short."""
        self._begin = None
        if self.bar is not None:
            self.bar.close()
            self.bar = None
