"""Callbacks that every run has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    """One bar for the run: step, rate, time left, and the few figures that tell how it goes.

    Args:
        shown: Metrics to show: key, label and format.
    """

    SHOWN = (
        ("loss", "loss", "{:.3f}"),
        ("rollout/kl_to_teacher", "KL", "{:.3f}"),
        ("rollout/correction_rate", "corrected", "{:.2%}"),
        ("rollout/mean_length", "length", "{:.0f}"),
    )

    def __init__(self, shown: tuple[tuple[str, str, str], ...] = SHOWN) -> None:
        self.shown = shown
        self.bar: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar."""
        if state.is_world_process_zero:
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit=" steps", dynamic_ncols=True)

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
        if self.bar is None or logs is None:
            return
        shown = {label: form.format(logs[name]) for name, label, form in self.shown if name in logs}
        if shown:
            self.bar.set_postfix(shown, refresh=False)
        evaluation = {name: value for name, value in logs.items() if name.startswith("eval/")}
        if evaluation:
            self.bar.write(f"step {state.global_step}: " + ", ".join(f"{k} {v:.4g}" for k, v in evaluation.items()))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Close the bar, also when training was cut short."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
