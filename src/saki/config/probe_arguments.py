"""What the sub-commands of ``saki probe`` take."""

from __future__ import annotations

from dataclasses import dataclass, field

from saki.config.commands import PairArguments, check_counts, check_device, check_dtype, option, teacher_dtype_option
from saki.config.sources import LAB_PROMPTS, check_model_name, check_prompts_name
from saki.types import check_number

LAB_TOKENS, PAPER_TOKENS = 64, 7168
"""Most tokens per completion unless something is said: of the lab's prompts, and of others."""


@dataclass
class ProbeBuildArguments(PairArguments):
    """``saki probe build``."""

    teacher_dtype: str = teacher_dtype_option()
    dataset: str = option(LAB_PROMPTS, "Prompts: a file, a folder, a hub name, or lab.")
    dataset_split: str | None = option(None, "Split of the data set.")
    limit: int = option(512, "How many prompts are rolled out.")
    num_pairs: int = option(1024, "Corrections to freeze, and as many accepted positions.")
    top_k: int = option(16, "Size of the teacher's top set (the 16 of C16); 4 suits the lab's 36 tokens.")
    teacher_top: int = option(0, "Keep the teacher's top tokens and the rest's mass only; 0 decides by size.")
    trust_region_radius: float = option(0.02, "Bound on KL(q||p), nats.")
    block_size: int = option(8, "Proposals per verification wave (K).")
    num_generations: int = option(8, "Completions per prompt.")
    max_prompt_length: int = option(1024, "Longer prompts are skipped and counted (tokens).")
    max_completion_length: int | None = option(
        None, "Most tokens per completion; by default 64 for the lab's prompts, else the paper's 7168."
    )
    batch_rows: int = option(64, "Completions that roll out together.")
    dtype: str = option("float32", "Dtype of the student: float32, float64, bfloat16.")
    device: str = option("auto", "cpu, cuda, or auto.")
    seed: int = option(0, "Run seed.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        super().__post_init__()
        check_prompts_name("dataset", self.dataset)
        if self.max_completion_length is None:
            self.max_completion_length = LAB_TOKENS if self.dataset == LAB_PROMPTS else PAPER_TOKENS
        check_counts(self, limit=1, num_pairs=1, top_k=1, teacher_top=0, block_size=1, num_generations=1)
        check_counts(self, max_prompt_length=1, max_completion_length=1, batch_rows=1, seed=0)
        check_number("trust_region_radius", self.trust_region_radius, positive=True)
        check_dtype("dtype", self.dtype)
        check_dtype("teacher_dtype", self.teacher_dtype, "auto")
        check_device(self.device)


@dataclass
class ProbeMeasureArguments:
    """``saki probe measure``."""

    probe: str | None = option(None, "Folder of the probe.")
    model: list[str] = field(
        default_factory=list, metadata={"help": "Checkpoints: folders, hub names, or lab/student; several may follow."}
    )
    steps: list[int] = field(
        default_factory=list,
        metadata={"help": "Step of each checkpoint; by default the number of a folder named checkpoint-N."},
    )
    label: str | None = option(None, "What is measured, for tables, such as the method; by default the model's name.")
    top_k: int | None = option(None, "Size of the teacher's top set; by default the probe's.")
    dtype: str = option("float32", "Dtype of the models: float32, float64, bfloat16.")
    device: str = option("auto", "cpu, cuda, or auto.")
    trust_remote_code: bool = option(False, "Run code that a model folder brings along.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        for name in self.model:
            check_model_name("model", name)
        if self.steps and len(self.steps) != len(self.model):
            raise ValueError(f"steps must name a step for each of {len(self.model)} models, got {len(self.steps)}")
        for step in self.steps:
            check_number("steps", step, least=0, whole=True)
        if self.top_k is not None:
            check_number("top_k", self.top_k, least=1, whole=True)
        check_dtype("dtype", self.dtype)
        check_device(self.device)


@dataclass
class ProbeCompareArguments:
    """``saki probe compare``."""

    probe: str | None = option(None, "Folder of the probe.")
    measured: list[str] = field(
        default_factory=list, metadata={"help": "Measurements of a method: files, or folders of them, one a seed."}
    )
    reference: list[str] = field(
        default_factory=list, metadata={"help": "Measurements of what it is compared with, in the same order."}
    )
    control: list[str] = field(
        default_factory=list,
        metadata={"help": "Measurements for Figure 2 b and c, such as Random-TM's; by default the reference's."},
    )
    measured_name: str | None = option(None, "How the method is called; by default its label.")
    reference_name: str | None = option(None, "How the reference is called; by default its label.")
    control_name: str | None = option(None, "How the control is called; by default its label.")
    active_steps: int | None = option(
        None, "Last step with a radius above 0, for Figure 2 a; by default what the measured run logged."
    )
    resamples: int = option(10_000, "Bootstrap resamples of prompts.")
    seed: int = option(0, "Seed of the resampling.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without reading anything."""
        check_counts(self, resamples=100, seed=0)
        if self.active_steps is not None:
            check_counts(self, active_steps=0)
