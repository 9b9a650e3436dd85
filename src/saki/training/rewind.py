"""A run folder taken back to the step that a run goes on from."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from saki.files import write_text
from saki.files.atomic import UNFINISHED
from saki.training.checkpoint import clear_staging, set_aside

logger = logging.getLogger(__name__)

_ROLLOUTS = re.compile(rf"^\.?step-(\d+)(?:-rank(\d+))?\.parquet(?:{re.escape(UNFINISHED)})?$")


class RewindCallback(TrainerCallback):
    """Before the first step, removes what the run folder holds of later steps, since those come again.

    Checkpoints go first: were the log cut first, a kill in between would let a later resume start behind the cut.

    Args:
        run_dir: The run folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._resumed_at: int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Go back to the state's step."""
        self._resumed_at = state.global_step or None
        if state.is_world_process_zero:
            clear_staging(self.run_dir / "checkpoints")
            set_aside(self.run_dir / "checkpoints", state.global_step)
            cut_metrics(self.run_dir / "metrics.jsonl", state.global_step)
        drop_rollouts(self.run_dir / "rollouts", state.global_step, args.process_index, args.world_size)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A finished run that is resumed trains nothing, so it must not log, evaluate or save once more either."""
        if state.global_step == self._resumed_at:
            control.should_log = control.should_evaluate = control.should_save = False


def cut_metrics(path: Path, step: int) -> None:
    """Keep the lines of a metrics file up to a step; lines that are not whole go, and are counted in the log.

    Args:
        path: ``metrics.jsonl``; made empty where it is missing.
        step: The last step that stays; 0 for none.
    """
    kept, torn = [], 0
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            logged = json.loads(line)["step"]
            if step > 0 and logged <= step:
                kept.append(line.decode())
        except (ValueError, TypeError, KeyError):
            torn += 1
    if torn:
        logger.warning("%s: %d lines are not whole and were dropped", path, torn)
    write_text(path, "".join(line + "\n" for line in kept))


def drop_rollouts(folder: Path, step: int, rank: int = 0, world_size: int = 1) -> None:
    """Remove the rollout files of later steps, and half-written ones.

    Args:
        folder: ``rollouts``.
        step: The last step that stays.
        rank: This process; each removes its own files, and those of ranks that are no more.
        world_size: Number of processes.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _ROLLOUTS.match(path.name)
        if match is None or int(match[2] or 0) % world_size != rank:
            continue
        if int(match[1]) > step or path.name.endswith(UNFINISHED):
            path.unlink()
