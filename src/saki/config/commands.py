"""What each command takes, beside the fields of the dataclasses that it composes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from saki.config.sources import LAB_PROMPTS, LAB_STUDENT, LAB_TEACHER


def option(default: Any, text: str) -> Any:
    """A dataclass field with a help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class CommonArguments:
    """Options of every command."""

    out: str | None = option(None, "Folder to write to.")
    json: bool = option(False, "End with one line of JSON.")
    traceback: bool = option(False, "Show the traceback of a user error as well.")


@dataclass
class PairArguments:
    """Which models."""

    model: str = option(LAB_STUDENT, "Student: a folder, a hub name, or lab/student.")
    teacher_model: str = option(LAB_TEACHER, "Teacher: a folder, a hub name, or lab/teacher.")
    teacher_dtype: str = option("auto", "Dtype of the teacher: auto (as stored), float32, bfloat16.")
    revision: str | None = option(None, "Revision of the student on the hub.")
    trust_remote_code: bool = option(False, "Run code that a model folder brings along.")


@dataclass
class TrainArguments:
    """``saki train``."""

    model: str | None = option(None, "Student: a folder, a hub name, or lab/student.")
    teacher_model: str | None = option(None, "Teacher: a folder, a hub name, or lab/teacher.")
    teacher_dtype: str = option("auto", "Dtype of the teacher: auto (as stored), float32, bfloat16.")
    revision: str | None = option(None, "Revision of the student on the hub.")
    trust_remote_code: bool = option(False, "Run code that a model folder brings along.")
    dataset: str | None = option(None, "Prompts: a parquet, JSON-lines or CSV file, a folder, a hub name, or lab.")
    dataset_split: str | None = option(None, "Split of the data set.")
    eval_dataset: str | None = option(
        None, "Prompts for evaluation during training (--eval_strategy steps), for example lab/development."
    )
    resume: bool = option(False, "Go on from the last good checkpoint of --out.")
    lora_rank: int = option(0, "Train a LoRA adapter of this rank instead of all weights; 0 for none.")
    lora_alpha: int = option(16, "LoRA alpha.")


@dataclass
class RolloutArguments(PairArguments):
    """``saki rollout``."""

    dataset: str = option(LAB_PROMPTS, "Prompts: a file, a folder, a hub name, or lab.")
    dataset_split: str | None = option(None, "Split of the data set.")
    limit: int = option(16, "How many prompts.")
    method: str = option("saki", "Method whose behavior policy is sampled.")
    method_options: str | None = option(None, 'Options of the method (JSON), such as {"top_k": 3}.')
    trust_region_radius: float = option(0.02, "Bound on KL(q||p), nats.")
    block_size: int = option(8, "Proposals per verification wave (K).")
    num_generations: int = option(4, "Completions per prompt.")
    max_prompt_length: int = option(1024, "Longer prompts are skipped and counted (tokens).")
    max_completion_length: int = option(64, "Most tokens per completion.")
    batch_rows: int = option(64, "Completions that roll out together.")
    solver: str = option("newton", "Bridge solver: newton, or bisection for the paper's 16 waves.")
    dtype: str = option("float32", "Dtype of the student: float32, float64, bfloat16.")
    device: str = option("auto", "cpu, cuda, or auto.")
    seed: int = option(0, "Run seed.")
    show: int = option(4, "How many completions to print, the most corrected first.")


@dataclass
class EvalArguments:
    """``saki eval``."""

    model: str = option(LAB_STUDENT, "Model: a folder, a hub name, lab/student or lab/teacher.")
    benchmarks: str = option("lab", "Benchmarks, separated by commas: lab for all seven, or names of them.")
    split: str = option("test", "Split of the lab's problems: test or development.")
    num_problems: int = option(300, "Problems per set.")
    num_samples: int = option(8, "Samples per problem.")
    max_new_tokens: int = option(64, "Most tokens per completion.")
    batch_rows: int = option(256, "Completions that roll out together.")
    dtype: str = option("float32", "Dtype of the model.")
    device: str = option("auto", "cpu, cuda, or auto.")
    revision: str | None = option(None, "Revision on the hub.")
    trust_remote_code: bool = option(False, "Run code that a model folder brings along.")
    seed: int = option(0, "Run seed.")


@dataclass
class DemoArguments:
    """``saki demo``."""

    method: str = option("saki", "Method to distil with.")
    max_steps: int = option(200, "Optimizer steps.")
    num_problems: int = option(60, "Test problems per set.")
    seed: int = option(0, "Run seed.")


@dataclass
class StudyArguments:
    """``saki study``; what is studied stands in the study file."""

    jobs: int = option(1, "Processes at once, each with one thread.")
    tables_only: bool = option(False, "Train nothing: write the tables of the runs that are finished.")


@dataclass
class LabBuildArguments:
    """``saki lab build``."""

    seed: int = option(0, "Seed of corpora and weights.")
    num_problems: int = option(100, "Problems per test set for the closing measurement.")
