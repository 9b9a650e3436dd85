"""Callbacks that every run has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class MetricsFileCallback(TrainerCallback):
    """Appends each log to ``metrics.jsonl``, one JSON object a line, each step once.

    When a run resumes, lines after the step of its checkpoint are dropped, since those steps come again.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Cut the file back to the state's step."""
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    break  # a torn last line
                if entry["step"] <= state.global_step and state.global_step > 0:
                    kept.append(line)
        staged = self.path.with_suffix(".jsonl.tmp")
        staged.write_text("".join(line + "\n" for line in kept))
        os.replace(staged, self.path)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append one line and flush it; the library's closing summary is no step and is left out."""
        if not state.is_world_process_zero or logs is None or "train_runtime" in logs:
            return
        with self.path.open("a") as stream:
            stream.write(json.dumps({"step": state.global_step, **logs}) + "\n")
            stream.flush()


class ConsoleCallback(TrainerCallback):
    """One bar for the run: step, rate, time left, and the few figures that tell how it goes."""

    SHOWN = (
        ("loss", "loss", "{:.3f}"),
        ("rollout/kl_to_teacher", "KL", "{:.3f}"),
        ("rollout/correction_rate", "corrected", "{:.2%}"),
        ("rollout/mean_length", "length", "{:.0f}"),
    )

    def __init__(self) -> None:
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
        shown = {label: form.format(logs[name]) for name, label, form in self.SHOWN if name in logs}
        if shown:
            self.bar.set_postfix(shown, refresh=False)
        evaluation = {name: value for name, value in logs.items() if name.startswith("eval/")}
        if evaluation:
            self.bar.write(f"step {state.global_step}: " + ", ".join(f"{k} {v:.4g}" for k, v in evaluation.items()))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
