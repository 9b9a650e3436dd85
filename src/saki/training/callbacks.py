"""Callbacks that every run has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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
        """Append one line and flush it."""
        if not state.is_world_process_zero or logs is None:
            return
        with self.path.open("a") as stream:
            stream.write(json.dumps({"step": state.global_step, **logs}) + "\n")
            stream.flush()
