"""GRPO through TRL's trainer, with saki's prompts, checkpoints and run folder."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer

from saki.data.prompts import DEFAULT_TEMPLATE_KWARGS
from saki.models import resolve_pair
from saki.training.callbacks import ConsoleCallback, MetricsFileCallback
from saki.training.grpo.config import TeacherConfig
from saki.training.grpo.prompts import graded_prompts
from saki.training.grpo.rewards import Grader, batched_reward
from saki.training.model_card import ModelCard, RunNames
from saki.training.publishing import Publishing
from saki.training.resume import OPTIMIZER_FIELDS, resume_facts
from saki.training.rewind import RewindCallback
from saki.training.sampler import check_enough
from saki.training.student_card import logged_figures, named
from saki.training.whole_checkpoints import WholeCheckpoints

SETTINGS = (
    "seed",
    "prompts_per_step",
    "num_generations",
    "max_prompt_length",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "beta",
    "loss_type",
    "scale_rewards",
    "num_iterations",
    "epsilon",
    "vllm_importance_sampling_correction",
)
"""Settings that decide what the steps do: on the card, and compared on resume."""

_SHOWN = (
    ("reward", "reward", "{:.3f}"),
    ("frac_reward_zero_std", "groups without signal", "{:.0%}"),
    ("completions/mean_length", "length", "{:.0f}"),
)
_FIGURES = {
    "reward": "Mean reward",
    "frac_reward_zero_std": "Share of groups without signal",
    "entropy": "Entropy, nats a token",
    "completions/mean_length": "Mean completion length, tokens",
    "completions/clipped_ratio": "Share of completions cut by the length cap",
}


class TeacherTrainer(Publishing, WholeCheckpoints, GRPOTrainer):
    """TRL's ``GRPOTrainer`` with a rule-based reward, in a run folder of saki's.

    Prompts are those that saki would roll out: too long ones are dropped and counted, thinking is off, completions end
    at the model's resolved stop set, and ids beyond the vocabulary are never sampled. The loss, the advantages and the
    generation are TRL's. It does not report its use to TRL's makers.

    Args:
        model: The model to train, float32.
        args: The configuration.
        train_dataset: Rows with ``prompt`` and ``answer``.
        processing_class: The model's tokenizer.
        grade: Grades the completions of a step.
        callbacks: More callbacks.

    Raises:
        ValueError: If model, tokenizer, prompts and configuration do not fit together; one sentence says where.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TeacherConfig,
        train_dataset: Any,
        processing_class: PreTrainedTokenizerBase,
        grade: Grader,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        spec = resolve_pair(model, None, processing_class, None)
        dataset, self.prompts = graded_prompts(train_dataset, processing_class, args.max_prompt_length)
        check_enough(len(dataset), args.prompts_per_step)
        model.generation_config.eos_token_id = list(spec.stop_token_ids)
        args = copy.copy(args)  # the caller's stays as it is recorded
        args.chat_template_kwargs = {**DEFAULT_TEMPLATE_KWARGS, **(args.chat_template_kwargs or {})}
        padding_ids = list(range(spec.vocab_size, model.get_output_embeddings().weight.shape[0]))
        if padding_ids and not args.use_vllm:  # vLLM has no such option
            args.generation_kwargs = {"suppress_tokens": padding_ids, **(args.generation_kwargs or {})}
        self.init_checkpoints(args.run_dir)
        self.names = RunNames(model=named(model))
        start: Any = super().__init__  # TRL's, which the mixins before it do not show
        with _quiet():
            start(
                model=model,
                reward_funcs=[batched_reward(grade)],
                args=args,
                train_dataset=dataset,
                processing_class=processing_class,
                callbacks=[
                    RewindCallback(args.run_dir),
                    MetricsFileCallback(args.run_dir / "metrics.jsonl"),
                    *(callbacks or []),
                ],
            )
        self.remove_callback(PrinterCallback)
        self._console = ConsoleCallback(_SHOWN)
        if self.pop_callback(ProgressCallback) is not None:
            self.add_callback(self._console)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, as :meth:`WholeCheckpoints.train` does.

        Raises:
            CheckpointError: If a named checkpoint does not fit, or none is usable; the run folder is as it was.
            DiskFullError: If there is no room; what was written before is whole.
        """
        try:
            with _quiet():
                return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            self._console.close()

    def resume_facts(self) -> dict[str, Any]:
        """What a resumed run must share with the one that wrote the checkpoint."""
        return resume_facts(self._args, "grpo", self.prompts.prompts, (*SETTINGS, *OPTIMIZER_FIELDS))

    def model_card(self) -> ModelCard:
        """The card of the teacher as it is now."""
        args = self._args
        more = ("learning_rate", "lr_scheduler_type", "weight_decay", "max_grad_norm", "bf16")
        settings = {name: getattr(args, name) for name in (*SETTINGS, *more)}
        settings["lr_scheduler_type"] = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        return ModelCard(
            title=str(args.hub_model_id or args.run_dir.absolute().name),
            summary=(
                "A teacher trained by GRPO with a rule-based reward: 1 for a right final answer, else 0. Trained with "
                "saki, through TRL's `GRPOTrainer`."
            ),
            tags=("saki", "grpo", "trl"),
            names=self.names,
            settings={"method": "grpo", "steps": self.state.global_step, **settings},
            figures=logged_figures(self.state, _FIGURES),
        )

    def _send_telemetry(self) -> None:
        """Nothing is sent."""

    @property
    def _args(self) -> TeacherConfig:
        return self.args  # type: ignore[return-value]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings about names of its own that TRL still uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated", category=FutureWarning)
        yield
