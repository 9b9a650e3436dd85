"""A trainer whose checkpoints are complete or not there, and whose resume takes the last good one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import nn
from transformers import GenerationConfig, Trainer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import TrainOutput

import saki
from saki.files import whole_folder
from saki.rollout.pool.errors import PoolError
from saki.training.checkpoint import (
    STAGING,
    CheckpointError,
    check_checkpoint,
    checkpoint_step,
    checkpoint_to_resume,
    clear_staging,
    publish,
    rotate,
    staged_checkpoint,
    write_manifest,
)

logger = logging.getLogger(__name__)


class WholeCheckpoints(Trainer):
    """Stages the library's checkpoints, lists them in a manifest and renames them into ``checkpoints/``.

    A trainer says with ``resume_facts`` what a run that goes on must share with the one that wrote a checkpoint. It
    calls :meth:`init_checkpoints` before anything is saved.
    """

    _checkpoint_root: Path
    _saved_step: int | None

    def resume_facts(self) -> dict[str, Any]:
        """Facts to write into a checkpoint and to compare with it on resume, JSON values."""
        raise NotImplementedError

    def init_checkpoints(self, run_dir: Path) -> None:
        """Name the folder of the checkpoints."""
        self._checkpoint_root = run_dir / "checkpoints"
        self._saved_step = None

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train; ``resume_from_checkpoint=True`` takes the newest undamaged checkpoint of this run folder.

        What the run folder holds of later steps goes before the first step, since those steps come again.

        Raises:
            CheckpointError: If a named checkpoint does not fit, or none is usable; the run folder is as it was.
            DiskFullError: If there is no room; what was written before is whole.
            PoolError: If the replicas that roll out fail too often; the steps before have their checkpoint.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(checkpoint_to_resume(self._checkpoint_root, self.resume_facts()))
        elif isinstance(resume_from_checkpoint, str):
            check_checkpoint(Path(resume_from_checkpoint), self.resume_facts())
        if resume_from_checkpoint:
            self._check_sharding(Path(resume_from_checkpoint))
        self._saved_step = checkpoint_step(Path(resume_from_checkpoint)) if resume_from_checkpoint else None
        try:
            outcome = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        except PoolError:
            self._save_finished_steps()
            raise
        if self._saved_step is not None and self.args.should_save:
            self._rotate(self._saved_step)  # a run that was killed before its last rotation has saved nothing since
            clear_staging(self._checkpoint_root)
        return outcome

    def _save_finished_steps(self) -> None:
        """Save what is trained, where rollouts have come to an end: between two steps, and on all ranks alike."""
        if self.state.global_step:
            assert isinstance(self.model, nn.Module)
            self._save_checkpoint(self.model, None)
            logger.warning("steps up to %d are saved; --resume goes on from there", self.state.global_step)

    def _check_sharding(self, folder: Path) -> None:
        if not folder.is_dir() or self.is_fsdp_enabled == any(folder.glob("pytorch_model_fsdp*")):
            return
        with_fsdp, here = ("without", "shards by FSDP2") if self.is_fsdp_enabled else ("with", "has no FSDP")
        raise CheckpointError(
            f"{folder} was written {with_fsdp} FSDP, and this run {here}; launch it as it was launched to go on, or "
            "start a new run from the model in that folder"
        )

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Model and tokenizer, whole or not at all; the library's pickle of the arguments is left out."""
        if not self.args.should_save:
            return super()._save(output_dir, state_dict)
        folder = Path(output_dir or str(self.args.output_dir))
        if folder.parent == self._checkpoint_root and folder.parent.name == STAGING:
            # Nobody sees it before it is whole, and other ranks may have begun to write their states there.
            self._save_files(folder, state_dict)
        else:
            with whole_folder(folder) as unfinished:
                self._save_files(unfinished, state_dict)

    def _save_files(self, folder: Path, state_dict: dict[str, Any] | None) -> None:
        super()._save(str(folder), state_dict)
        (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # nothing reads it back
        model: Any = self.accelerator.unwrap_model(self.model)
        if hasattr(model, "get_base_model"):  # an adapter's folder lacks the ids that end a completion
            ends = getattr(model.get_base_model().generation_config, "eos_token_id", None)
            GenerationConfig(eos_token_id=ends).save_pretrained(folder)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._checkpoint_root)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the library's checkpoint into a staging folder, list it in a manifest, rename it into place."""
        root, step, writer = self._checkpoint_root, self.state.global_step, self.args.should_save
        if step == self._saved_step:  # it is there already: nothing has been trained since
            return
        name = f"checkpoint-{step}"
        best = self._best_name()
        with staged_checkpoint(root, root / name, writer) as staging:
            self.accelerator.wait_for_everyone()
            self._checkpoint_root = staging
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._checkpoint_root = root
            self.accelerator.wait_for_everyone()
            if best:
                self.state.best_model_checkpoint = str(root / best)
            if writer:
                self.state.save_to_json(str(staging / name / "trainer_state.json"))
                facts = {"save_only_model": self.args.save_only_model, "step": step, "saki": saki.__version__}
                write_manifest(staging / name, self.resume_facts() | facts)
                publish(staging / name, root / name)
                self._rotate(step)
        self._saved_step = step
        self.accelerator.wait_for_everyone()

    def _rotate(self, step: int) -> None:
        name = f"checkpoint-{step}"
        rotate(self._checkpoint_root, self.args.save_total_limit, {name, self._best_name() or name})

    def _best_name(self) -> str | None:
        return f"checkpoint-{self.state.best_global_step}" if self.state.best_global_step else None
