"""Configuration of ``saki teacher``: TRL's, with saki's names and the paper's values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from trl import GRPOConfig

from saki.training.config import name_checkpointing
from saki.training.learning_rate import check_learning_rate_schedule
from saki.training.publishing import check_hub_strategy
from saki.types import check_number


@dataclass
class TeacherConfig(GRPOConfig):
    """Arguments of a GRPO run: TRL's ``GRPOConfig`` and the fields below.

    Defaults are the paper's (Table 4) where it states one: 64 prompts with 8 completions a step, constant learning rate
    1e-6, one epoch, temperature 1, no KL term, the mean over all tokens of the step (TRL's loss ``dapo``), advantages
    divided by the group's standard deviation. Weight decay and gradient clipping are those of Table 5. A step generates
    once and updates once, so the ratio is 1 and the clip has nothing to do.
    """

    output_dir: str | None = field(default="runs/teacher", metadata={"help": "Run folder."})
    prompts_per_step: int = field(default=64, metadata={"help": "Prompts per optimizer step, over all ranks."})
    max_prompt_length: int = field(default=1024, metadata={"help": "Longer prompts are skipped and counted (tokens)."})
    num_generations: int = field(default=8, metadata={"help": "Completions per prompt."})
    max_completion_length: int = field(default=7168, metadata={"help": "Most tokens per completion."})
    learning_rate: float = field(default=1e-6, metadata={"help": "Peak learning rate of AdamW."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW."})
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Learning-rate schedule of the library."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the prompts, unless max_steps is set."})
    per_device_train_batch_size: int = field(default=8, metadata={"help": "Completions per device and micro-batch."})
    gradient_checkpointing: bool | None = field(default=None, metadata={"help": "Keep the input of each layer only."})
    bf16: bool | None = field(default=False, metadata={"help": "bfloat16 autocast (weights stay float32)."})
    logging_steps: float = field(default=1, metadata={"help": "Steps between log lines."})
    save_steps: float = field(default=50, metadata={"help": "Steps between checkpoints."})
    report_to: None | str | list[str] = field(  # noqa: RUF036  (the order that the library's parser reads)
        default="tensorboard", metadata={"help": "Trackers: tensorboard, wandb, trackio, none, ..."}
    )
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={
            "help": "With use_vllm, weigh each completion by its likelihood here over that in vLLM, and drop it above "
            "a bound: another objective than the paper's."
        },
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Must stay off: a NaN loss must show."})

    def __post_init__(self) -> None:
        """Check the fields and derive gradient accumulation.

        Raises:
            ValueError: One sentence per mistake.
        """
        for name, least in (
            ("prompts_per_step", 1),
            ("num_generations", 2),
            ("max_prompt_length", 1),
            ("max_completion_length", 1),
            ("per_device_train_batch_size", 1),
        ):
            check_number(name, getattr(self, name), least=least, whole=True)
        check_number("seed", self.seed, least=0, below=2**32, whole=True)
        check_number("learning_rate", self.learning_rate, least=0)
        name_checkpointing(self)
        completions, given = (
            self.prompts_per_step * self.num_generations,
            int(vars(self)["gradient_accumulation_steps"]),
        )
        if completions % self.per_device_train_batch_size:
            raise ValueError(
                f"prompts_per_step * num_generations = {completions} must be a multiple of "
                f"per_device_train_batch_size = {self.per_device_train_batch_size}; change one of them"
            )
        derived = getattr(self, "steps_per_generation", None)  # set where a resolved configuration is read again
        if getattr(self, "generation_batch_size", None) not in (None, completions) or derived not in (None, given):
            raise ValueError(
                "generation_batch_size and steps_per_generation follow from prompts_per_step in saki; leave them out"
            )
        for name, value in (("generation_batch_size", completions), ("steps_per_generation", None)):
            setattr(self, name, value)  # TRL derives the second, and takes no more than one
        super().__post_init__()
        derived = vars(self)["steps_per_generation"]
        if given not in (1, derived):
            raise ValueError(
                f"gradient_accumulation_steps follows from the step's size and is {derived} here, got {given}; "
                "leave it out"
            )
        self.gradient_accumulation_steps = derived
        check_hub_strategy(self)
        check_learning_rate_schedule(self)

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return Path(str(self.output_dir))
