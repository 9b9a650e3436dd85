"""Final models: a card beside the weights, and a push to the hub that holds the model and nothing else of the run."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import HubStrategy

from saki.files import whole_folder
from saki.training.model_card import ModelCard, RunNames, write_card

logger = logging.getLogger(__name__)

MODEL_FOLDER = "model"
"""Folder of the final model in a run folder."""

_NO_MODEL = (
    "optimizer",
    "scheduler",
    "rng_state",
    "scaler",
    "trainer_state",
    "training_args",
    "saki_state",
    "pytorch_model_fsdp",
)


class Publishing(Trainer):
    """A trainer whose saved models carry a card, and whose ``push_to_hub`` uploads ``model/`` of the run folder.

    The library uploads all of ``output_dir``, which in saki holds rollouts, metrics and checkpoints as well.

    Attributes:
        names: What the caller knows of the run, for the card.
    """

    names: RunNames

    def model_card(self) -> ModelCard:
        """The card of the model as it is now."""
        raise NotImplementedError

    @property
    def model_folder(self) -> Path:
        """Where the final model goes."""
        return Path(str(self.args.output_dir)) / MODEL_FOLDER

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model and tokenizer, with a card unless a checkpoint is written; push where ``push_to_hub`` is set.

        Every rank must call it: a sharded model is gathered on the host of the first one.

        Args:
            output_dir: Folder; ``model/`` of the run folder by default.
            _internal_call: Set by the library for checkpoints.
        """
        folder = output_dir or str(self.model_folder)
        if self.is_fsdp_enabled and not _internal_call:
            # The library leaves a model out where checkpoints are sharded. All ranks gather, the first one keeps.
            self._save(folder, self.accelerator.get_state_dict(self.model))
        else:
            super().save_model(folder, _internal_call=True)
        if _internal_call:
            return
        if self.args.should_save:
            write_card(Path(folder), self.model_card())
        if self.args.push_to_hub:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the card of the final model anew, once that is saved; the library's arguments are not needed."""
        if self.is_world_process_zero() and self.model_folder.is_dir():
            write_card(self.model_folder, self.model_card())

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model to ``model/`` of the run folder and upload that folder, as ``Trainer.push_to_hub`` does.

        Args:
            commit_message: Message of the commit.
            blocking: Whether to wait for the upload.
            token: Token instead of ``hub_token``.
            revision: Revision instead of ``hub_revision``.
            private: Whether a new repository is private.
            **kwargs: What the library would pass to its own card; not used.

        Returns:
            The commit, or a future of it; None on other ranks than the first.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token if token is not None else self.args.hub_token
        if self.hub_model_id is None:
            if private is not None:
                self.args.hub_private_repo = private  # transformers 5.17 takes it from there only
            self.init_hf_repo(token=token)
        if self.is_fsdp_enabled:
            self._save(str(self.model_folder), self.accelerator.get_state_dict(self.model))
        else:
            self.save_model(str(self.model_folder), _internal_call=True)
        if not self.is_world_process_zero():
            return None
        write_card(self.model_folder, self.model_card())
        self._finish_current_push()
        return self._upload(str(commit_message), token, revision or self.args.hub_revision, blocking)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload the model of a checkpoint in the background, unless the last upload is still under way."""
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        pending: Any = self.push_in_progress
        if pending is not None and not pending.done() and not self.args.hub_always_push:
            return
        self._finish_current_push()
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        with whole_folder(self.model_folder) as unfinished:
            for path in Path(checkpoint_folder).iterdir():
                if path.is_file() and not path.name.startswith(_NO_MODEL):
                    shutil.copy(path, unfinished / path.name)
        write_card(self.model_folder, self.model_card())
        message = f"Training in progress, step {self.state.global_step}"
        self.push_in_progress = self._upload(message, self.args.hub_token, self.args.hub_revision, False)

    def _finish_current_push(self) -> None:
        pending: Any = getattr(self, "push_in_progress", None)
        if pending is None:
            return
        if error := pending.exception():  # waits; a model that is trained is worth more than an upload on the way
            logger.warning("an upload to %s failed: %s", self.hub_model_id, error)
        self.push_in_progress = None

    def _upload(self, message: str, token: str | None, revision: str | None, blocking: bool) -> Any:
        upload: Any = HfApi().upload_folder  # one signature a way of waiting
        return upload(
            repo_id=str(self.hub_model_id),
            folder_path=self.model_folder,
            commit_message=message,
            token=token,
            run_as_future=not blocking,
            revision=revision,
        )


def check_hub_strategy(args: TrainingArguments) -> None:
    """Refuse to upload checkpoints.

    Raises:
        ValueError: If ``hub_strategy`` asks for it.
    """
    if args.push_to_hub and args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise ValueError(
            f"hub_strategy {HubStrategy(args.hub_strategy).value} would upload checkpoints, and saki uploads models "
            "only; take every_save or end"
        )
