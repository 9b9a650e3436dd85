"""Configuration of :class:`saki.training.trainer.SakiTrainer`."""

from __future__ import annotations

import importlib.util
import logging
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from saki.methods import get_method
from saki.objectives import radius_schedule
from saki.training.launch import check_launch
from saki.training.learning_rate import check_learning_rate_schedule
from saki.training.pool_options import PoolOptions
from saki.training.publishing import check_hub_strategy
from saki.types import ExactOptions, check_number, json_object, unknown_option

logger = logging.getLogger(__name__)

ROLLOUT_SECONDS = 1800.0
"""Seconds of rollout that ``ddp_timeout`` leaves beside the start of a pool's replica and a stall."""


@dataclass
class SakiConfig(TrainingArguments, PoolOptions, ExactOptions):
    """Arguments of a distillation run: the library's ``TrainingArguments`` and the fields below.

    Defaults are the paper's (Table 5): 64 prompts with 8 completions a step, constant learning rate 1e-6, AdamW with
    weight decay 0.01, gradient clipping at 1.0, radius 0.02 annealed to 0 over 50 of 200 steps, K = 8. Completions,
    not prompts, are what ``per_device_train_batch_size`` counts; gradient accumulation follows from the step's size.
    """

    output_dir: str | None = field(default="runs/saki", metadata={"help": "Run folder."})
    method: str = field(
        default="saki",
        metadata={"help": "Registered method (opd, trb, saki, ...) or package.module:attribute of your own."},
    )
    method_options: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'Options of the method (JSON), such as {"exopd_lambda": 1.1}; docs/methods.md.'}
    )
    trust_region_radius: float = field(
        default=0.02, metadata={"help": "Bound on KL(q||p) at step 1, in nats. 0 rolls out the student alone."}
    )
    radius_schedule: str = field(
        default="linear",
        metadata={"help": "How the radius changes over radius_anneal_steps: linear, cosine, or constant."},
    )
    radius_anneal_steps: int = field(
        default=50, metadata={"help": "Steps over which the radius falls to radius_floor."}
    )
    radius_floor: float = field(default=0.0, metadata={"help": "Radius after radius_anneal_steps, in nats."})
    block_size: int = field(default=8, metadata={"help": "Proposals per verification wave (K)."})
    prompts_per_step: int = field(default=64, metadata={"help": "Prompts per optimizer step, over all ranks."})
    num_generations: int = field(default=8, metadata={"help": "Completions per prompt."})
    max_prompt_length: int = field(default=1024, metadata={"help": "Longer prompts are skipped and counted (tokens)."})
    max_completion_length: int = field(default=7168, metadata={"help": "Most tokens per completion."})
    advantage_clip: float | None = field(
        default=10.0, metadata={"help": "Bound on the sampled log-ratio |A| in nats; null for none."}
    )
    rollout_batch_rows: int = field(default=64, metadata={"help": "Completions that roll out together in the engine."})
    rollout_dtype: str = field(
        default="auto",
        metadata={
            "help": "Dtype of the engine's student: auto (bfloat16 under bf16, else the trainer's), float32, bfloat16."
        },
    )
    adaptive_block_size: bool = field(
        default=False, metadata={"help": "Let K follow the acceptance seen so far, up to block_size."}
    )
    compile_rollout: bool = field(
        default=False, metadata={"help": "Compile the engine's forwards and bridge (minutes to start; long runs only)."}
    )
    loss_chunk_tokens: int = field(
        default=1024, metadata={"help": "Response tokens whose full-vocabulary logits exist at once in the loss."}
    )
    prompt_suffix: str | None = field(default=None, metadata={"help": "Text appended to every prompt."})
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Passed to the chat template (JSON); thinking is off unless set here. strftime_now is a date that "
            "the template takes for today."
        },
    )
    save_rollouts_steps: int = field(
        default=1, metadata={"help": "Write every n-th step's rollout to rollouts/*.parquet; 0 for none."}
    )
    probe: str | None = field(
        default=None, metadata={"help": "Folder of a probe (saki probe build) to measure while training."}
    )
    probe_steps: int = field(
        default=50, metadata={"help": "Steps between measurements of the probe; the first and the last always count."}
    )
    eval_num_generations: int = field(default=1, metadata={"help": "Completions per prompt of eval_dataset."})

    learning_rate: float = field(default=1e-6, metadata={"help": "Peak learning rate of AdamW."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW."})
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Learning-rate schedule of the library."})
    max_steps: int = field(default=200, metadata={"help": "Optimizer steps; -1 to count num_train_epochs instead."})
    per_device_train_batch_size: int = field(default=8, metadata={"help": "Completions per device and micro-batch."})
    logging_steps: float = field(default=1, metadata={"help": "Steps between log lines."})
    save_steps: float = field(default=50, metadata={"help": "Steps between checkpoints."})
    report_to: None | str | list[str] = field(  # noqa: RUF036  (the order that the library's parser reads)
        default="tensorboard", metadata={"help": "Trackers: tensorboard, wandb, trackio, none, ..."}
    )
    bf16: bool = field(default=False, metadata={"help": "bfloat16 autocast for the update (weights stay float32)."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Must stay off: prompts are columns."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Must stay off: a NaN loss must show."})

    def __post_init__(self) -> None:
        """Check the fields and derive gradient accumulation.

        Raises:
            ValueError: One sentence per mistake.
        """
        self.chat_template_kwargs = json_object("chat_template_kwargs", self.chat_template_kwargs)
        self.method_options = json_object("method_options", self.method_options)
        get_method(self.method, self.method_options)
        for name, least in (
            ("block_size", 1),
            ("prompts_per_step", 1),
            ("num_generations", 1),
            ("max_prompt_length", 1),
            ("max_completion_length", 1),
            ("rollout_batch_rows", 1),
            ("loss_chunk_tokens", 1),
            ("radius_anneal_steps", 1),
            ("eval_num_generations", 1),
            ("probe_steps", 1),
            ("save_rollouts_steps", 0),
        ):
            check_number(name, getattr(self, name), least=least, whole=True)
        self._check_numbers()
        self.check_engine(self.rollout_batch_rows)
        if self.rollout_dtype not in ("auto", "float32", "bfloat16", "float64"):
            raise ValueError(f"rollout_dtype must be auto, float32, float64 or bfloat16, got {self.rollout_dtype!r}")
        if self.remove_unused_columns or self.logging_nan_inf_filter:
            raise ValueError("remove_unused_columns and logging_nan_inf_filter must stay off in saki")
        if self.auto_find_batch_size:
            raise ValueError("auto_find_batch_size would change the step's rollout; set per_device_train_batch_size")
        self._check_library_options()
        self._leave_time_for_the_pool()
        self.radius_at(1)
        name_checkpointing(self)
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # every trainable weight of a causal LM takes part in each forward
        try:
            super().__post_init__()
        except FileNotFoundError as error:
            raise ValueError(f"a setting names the file {error.filename!r}, which is not there; check it") from error
        check_hub_strategy(self)
        check_learning_rate_schedule(self)
        check_launch(self)
        self._check_accelerator()
        self._derive_accumulation()

    def _check_library_options(self) -> None:
        """Options of the library that would change the objective unseen, or fail late."""
        if self.label_smoothing_factor or self.neftune_noise_alpha is not None:
            raise ValueError(
                "label_smoothing_factor and neftune_noise_alpha would change the objective; leave them out"
            )
        if self.ignore_data_skip or self.save_on_each_node:
            raise ValueError(
                "ignore_data_skip would train on the first prompts again after a resume, and save_on_each_node would "
                "write one checkpoint several times; leave them out"
            )
        if self.metric_for_best_model not in (None, "loss", "eval_loss"):
            raise ValueError(
                f"metric_for_best_model can only be loss, the KL to the teacher, got {self.metric_for_best_model!r}"
            )
        if (
            self.report_to in ("tensorboard", ["tensorboard"])
            and "tensorboard" not in get_available_reporting_integrations()
        ):
            logger.warning(
                "tensorboard is not installed, so metrics go to metrics.jsonl alone; pip install tensorboard for its "
                "charts, or report_to none to do without this note"
            )
            self.report_to = "none"
        named = [self.report_to] if isinstance(self.report_to, str) else list(self.report_to or [])
        available = ("none", "all", *get_available_reporting_integrations())
        for tracker in named:
            if not isinstance(tracker, str):
                raise ValueError(f"report_to must name trackers, got {self.report_to!r}")
            if tracker not in INTEGRATION_TO_CALLBACK and tracker not in available:
                raise ValueError(unknown_option(tracker, sorted(INTEGRATION_TO_CALLBACK), "report_to"))
            if tracker not in available:
                raise ValueError(
                    f"report_to names {tracker!r}, which is not installed; install it, or take one of "
                    f"{', '.join(available)}"
                )
        for name in ("lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
            if hasattr(self, name):  # transformers 5.17 has but one of the last two
                setattr(self, name, json_object(name, getattr(self, name)))
        if self.optim_args and any(part.count("=") != 1 for part in self.optim_args.split(",")):
            raise ValueError(f"optim_args must be key=value pairs separated by commas, got {self.optim_args!r}")
        if self.deepspeed and importlib.util.find_spec("deepspeed") is None:
            raise ValueError("deepspeed is set, and the package is not installed; install deepspeed or leave it out")

    def _check_accelerator(self) -> None:
        """What the library hands to accelerate, as it stands after the library has read it."""
        shared: Any = self.accelerator_config
        if shared.split_batches or shared.dispatch_batches or not shared.even_batches:
            raise ValueError(
                "accelerator_config's split_batches, dispatch_batches and even_batches would change which completions "
                "a rank trains on; leave them out"
            )

    def _leave_time_for_the_pool(self) -> None:
        """Ranks other than the pool's wait in a collective while it starts, rolls out and replaces a replica."""
        if self.engine == "pool":
            needed = self.pool_start_timeout + self.pool_stall_timeout + ROLLOUT_SECONDS
            self.ddp_timeout = max(self.ddp_timeout, math.ceil(needed))

    def _check_numbers(self) -> None:
        """Numbers of the library that it takes as they come, and ours that are no counts."""
        check_number("trust_region_radius", self.trust_region_radius, least=0)
        check_number("seed", self.seed, least=0, below=2**32, whole=True)
        check_number("per_device_train_batch_size", self.per_device_train_batch_size, least=1, whole=True)
        check_number("max_steps", self.max_steps, whole=True)
        if self.max_steps < 1 and self.max_steps != -1:
            raise ValueError(f"max_steps must be at least 1, or -1 to count num_train_epochs, got {self.max_steps}")
        check_number("num_train_epochs", self.num_train_epochs, positive=True)
        if self.max_steps > 0 and self.num_train_epochs != SakiConfig.num_train_epochs:
            raise ValueError(
                f"num_train_epochs is {self.num_train_epochs:g}, but saki counts steps, and max_steps is "
                f"{self.max_steps}; set max_steps to -1 to count epochs, or leave num_train_epochs out"
            )
        check_number("dataloader_num_workers", self.dataloader_num_workers, least=0, whole=True)
        for name in ("learning_rate", "weight_decay", "max_grad_norm"):
            check_number(name, getattr(self, name), least=0)
        for name, strategy in (("save_steps", self.save_strategy), ("logging_steps", self.logging_strategy)):
            if strategy == "steps":
                check_number(name, getattr(self, name), positive=True)
        if self.eval_strategy == "steps" and self.eval_steps is not None:  # without it logging_steps counts
            check_number("eval_steps", self.eval_steps, positive=True)
        if self.advantage_clip is not None:
            check_number("advantage_clip", self.advantage_clip, positive=True)

    def _derive_accumulation(self) -> None:
        completions = self.prompts_per_step * self.num_generations
        per_micro_step = self.per_device_train_batch_size * self.world_size
        if completions % per_micro_step:
            raise ValueError(
                f"prompts_per_step * num_generations = {completions} must be a multiple of "
                f"per_device_train_batch_size * devices = {per_micro_step}; change one of them"
            )
        derived = completions // per_micro_step
        if self.gradient_accumulation_steps not in (1, derived):
            raise ValueError(
                f"gradient_accumulation_steps follows from the step's size and is {derived} here, got "
                f"{self.gradient_accumulation_steps}; leave it out"
            )
        self.gradient_accumulation_steps = derived

    def radius_at(self, step: int) -> float:
        """Trust-region radius at an optimizer step (1-based), nats."""
        return radius_schedule(
            self.radius_schedule, self.trust_region_radius, step, self.radius_anneal_steps, self.radius_floor
        )

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return Path(str(self.output_dir))


def name_checkpointing(args: TrainingArguments) -> None:
    """Hand ``gradient_checkpointing`` on under the name that the installed library has for it.

    transformers 5.24 renamed the field to ``activation_checkpointing`` and warns of the old name; 5.17 knows the old
    one only.
    """
    for name in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):
        renamed = name.replace("gradient", "activation")
        if hasattr(args, renamed) and getattr(args, renamed) is None and getattr(args, name) is not None:
            setattr(args, renamed, getattr(args, name))
            setattr(args, name, None)
