"""What each command takes, beside the fields of the dataclasses that it composes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from saki.config.sources import (
    LAB_PROMPTS,
    LAB_STUDENT,
    LAB_TEACHER,
    check_model_name,
    check_num_problems,
    check_prompts_name,
)
from saki.methods import get_method
from saki.types import check_number, json_object

DTYPES = ("float32", "float64", "bfloat16", "float16")
"""Dtypes that the engines run in."""


def check_counts(arguments: Any, **least: int) -> None:
    """Whole numbers with a smallest value each.

    Raises:
        ValueError: One sentence.
    """
    for name, smallest in least.items():
        check_number(name, getattr(arguments, name), least=smallest, whole=True)


def check_dtype(name: str, value: str, *more: str) -> None:
    """A dtype by name.

    Raises:
        ValueError: If it is none that saki runs in.
    """
    if value not in (*more, *DTYPES):
        raise ValueError(f"{name} must be one of {', '.join((*more, *DTYPES))}, got {value!r}")


def check_device(name: str) -> None:
    """``auto``, or a device that is here.

    Raises:
        ValueError: If it is not.
    """
    if name == "auto":
        return
    try:
        kind = torch.device(name).type
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} is not available here; use cpu, cuda or auto") from error
    if kind == "meta":
        raise ValueError("device 'meta' holds no numbers; use cpu, cuda or auto")
    if kind == "mps":
        raise ValueError("device 'mps' has no float64, in which saki draws and solves; use cpu")


def option(default: Any, text: str) -> Any:
    """A dataclass field with a help text."""
    return field(default=default, metadata={"help": text})


def teacher_dtype_option() -> Any:
    """The field ``teacher_dtype`` of a command that loads a teacher."""
    return option("auto", "Dtype of the teacher: auto (as stored; float32 at least on a CPU), float32, bfloat16.")


@dataclass
class CommonArguments:
    """Options of every command."""

    out: str | None = option(None, "Folder to write to.")
    json: bool = option(False, "End with one line of JSON.")
    traceback: bool = option(False, "Show the traceback of a user error as well.")

    def __post_init__(self) -> None:
        """An empty name would write to the present folder."""
        if self.out is not None and not self.out.strip():
            raise ValueError("out is empty; give a folder to write to, or leave --out away")


@dataclass
class PairArguments:
    """Which models."""

    model: str = option(LAB_STUDENT, "Student: a folder, a hub name, or one of the lab: lab/student, lab/habit, ...")
    teacher_model: str = option(LAB_TEACHER, "Teacher: a folder, a hub name, or lab/teacher.")
    revision: str | None = option(None, "Revision of the student on the hub.")
    trust_remote_code: bool = option(False, "Run code that a model folder brings along.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        check_model_name("model", self.model)
        check_model_name("teacher_model", self.teacher_model)


@dataclass
class TrainArguments:
    """``saki train``."""

    model: str | None = option(None, "Student: a folder, a hub name, or one of the lab: lab/student, lab/habit, ...")
    teacher_model: str | None = option(None, "Teacher: a folder, a hub name, or lab/teacher.")
    teacher_dtype: str = teacher_dtype_option()
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

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        for key in ("model", "teacher_model"):
            if getattr(self, key) is not None:
                check_model_name(key, getattr(self, key))
        for key in ("dataset", "eval_dataset"):
            if getattr(self, key) is not None:
                check_prompts_name(key, getattr(self, key))
        check_dtype("teacher_dtype", self.teacher_dtype, "auto")
        check_counts(self, lora_rank=0, lora_alpha=1)


@dataclass
class RolloutArguments(PairArguments):
    """``saki rollout``."""

    teacher_dtype: str = teacher_dtype_option()
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

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        super().__post_init__()
        check_dtype("teacher_dtype", self.teacher_dtype, "auto")
        get_method(self.method)
        check_prompts_name("dataset", self.dataset)
        check_counts(self, limit=1, max_prompt_length=1, batch_rows=1, show=0)
        check_dtype("dtype", self.dtype)
        check_device(self.device)


@dataclass
class EvalArguments:
    """``saki eval``."""

    model: str = option(LAB_STUDENT, "Model: a folder (a LoRA adapter, too), a hub name, lab/student, lab/teacher, ...")
    benchmarks: str = option(
        "lab",
        "Benchmarks, separated by commas: lab or paper for all seven of either, names of them, FILE.yaml, or "
        "module:NAME for your own.",
    )
    data_dir: str | None = option(None, "Folder of parquet or JSON-lines files to read benchmarks from, not the hub.")
    split: str = option("test", "Split of the lab's problems: test or development.")
    num_problems: int = option(300, "Problems per set of the lab.")
    limit: int | None = option(None, "Take the first so many problems of each benchmark only.")
    num_samples: int = option(8, "Samples per problem.")
    k: int | None = option(None, "The k of Mean@k and Pass@k, unbiased where more samples are drawn; else num_samples.")
    max_new_tokens: int | None = option(None, "Most tokens per completion; by default 64 for the lab, else 16384.")
    temperature: float = option(1.0, "Temperature of sampling; 0 takes the most likely token.")
    prompt_suffix: str | None = option(None, "Text behind every problem, instead of the request for a boxed answer.")
    chat_template_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Passed to the chat template (JSON); thinking is off unless set here. strftime_now is a date that "
            "the template takes for today."
        },
    )
    batch_rows: int = option(256, "Completions that roll out together, memory permitting.")
    chunk_rows: int | None = option(
        None, "Completions between two writes to --out; by default 32 on a CPU, 4 x batch_rows on a GPU."
    )
    grading_workers: int | None = option(None, "Processes that grade; by default one a core.")
    grading_seconds: float = option(6.0, "Seconds for grading one answer; what takes longer counts as wrong.")
    dtype: str = option("float32", "Dtype of the model.")
    device: str = option("auto", "cpu, cuda, or auto.")
    revision: str | None = option(None, "Revision on the hub.")
    trust_remote_code: bool = option(False, "Run code that a model folder brings along.")
    seed: int = option(0, "Run seed.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        check_model_name("model", self.model)
        self.chat_template_kwargs = json_object("chat_template_kwargs", self.chat_template_kwargs)
        check_counts(self, num_problems=1, num_samples=1, batch_rows=1, seed=0)
        for name in ("limit", "k", "max_new_tokens", "chunk_rows", "grading_workers"):
            if getattr(self, name) is not None:
                check_counts(self, **{name: 1})
        if self.k is not None and self.k > self.num_samples:
            raise ValueError(
                f"k is {self.k}, but a problem has {self.num_samples} samples; lower k or raise num_samples"
            )
        check_number("temperature", self.temperature, least=0)
        check_number("grading_seconds", self.grading_seconds, least=0.1)
        if self.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                f"at temperature 0 all {self.num_samples} samples of a problem are the same; set num_samples to 1"
            )
        check_dtype("dtype", self.dtype)
        check_device(self.device)


@dataclass
class RegradeArguments:
    """``saki eval regrade FOLDER``."""

    k: int | None = option(None, "The k of Mean@k and Pass@k; by default the number of samples of a problem.")
    grading_workers: int | None = option(None, "Processes that grade; by default one a core.")
    grading_seconds: float = option(6.0, "Seconds for grading one answer; what takes longer counts as wrong.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without reading anything."""
        for name in ("k", "grading_workers"):
            if getattr(self, name) is not None:
                check_counts(self, **{name: 1})
        check_number("grading_seconds", self.grading_seconds, least=0.1)


@dataclass
class EvalTablesArguments:
    """``saki eval tables FOLDER ...``."""

    out: str = option("runs/tables", "Folder to write to (-o).")
    reference: str | None = option(None, "Label that the others are compared with: by default trb, else the first.")
    json: bool = option(False, "End with one line of JSON.")
    traceback: bool = option(False, "Show the traceback of a user error as well.")


@dataclass
class VerifyArguments(PairArguments):
    """``saki verify``."""

    dataset: str | None = option(
        None, "Prompts: a file, a folder, a hub name, or lab; by default a few built-in texts."
    )
    dataset_split: str | None = option(None, "Split of the data set.")
    limit: int = option(8, "How many prompts.")
    trust_region_radius: float = option(0.1, "Radius of every other round, nats; the rest use a quarter of it.")
    block_size: int = option(8, "Proposals per verification wave (K).")
    num_generations: int = option(4, "Completions per prompt and round.")
    max_prompt_length: int = option(1024, "Longer prompts are skipped and counted (tokens).")
    max_completion_length: int = option(32, "Most tokens per completion.")
    batch_rows: int = option(32, "Completions that roll out together.")
    alpha: float = option(1e-6, "False-alarm rate of the law test.")
    max_tokens: int = option(20_000, "Stop the law test after this many tokens.")
    max_seconds: float = option(150.0, "Stop the law test after this many seconds.")
    dtype: str = option("float32", "Dtype of both models: float32, float64, bfloat16.")
    device: str = option("auto", "cpu, cuda, or auto.")
    seed: int = option(0, "Run seed.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        super().__post_init__()
        if self.dataset is not None:
            check_prompts_name("dataset", self.dataset)
        check_counts(self, limit=1, max_prompt_length=1, seed=0)
        check_dtype("dtype", self.dtype)
        check_device(self.device)


@dataclass
class DemoArguments:
    """``saki demo``."""

    method: str = option("saki", "Method to distil with.")
    max_steps: int = option(200, "Optimizer steps.")
    num_problems: int = option(60, "Test problems per set.")
    seed: int = option(0, "Run seed.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        get_method(self.method)
        check_counts(self, max_steps=1, num_problems=1, seed=0)
        check_number("seed", self.seed, below=2**32)
        check_num_problems("num_problems", self.num_problems)


@dataclass
class StudyArguments:
    """``saki study``; what is studied stands in the study file."""

    jobs: int = option(1, "Processes at once, each with one thread.")
    tables_only: bool = option(False, "Train nothing: write the tables of the runs that are finished.")
    known: str | None = option(
        None, "Files results.parquet from elsewhere, joined by commas: their runs of this study count as finished."
    )
    reference: str | None = option(None, "Label that the tables compare the others with, instead of the file's.")
    only: str | None = option(None, "Carry out the runs of these labels alone, joined by commas; the rest stay open.")
    only_seeds: str | None = option(None, "Carry out the runs of these seeds alone, for example 300-307.")
    only_students: str | None = option(None, "Carry out the runs of these students alone, joined by commas.")


@dataclass
class BenchPairArguments:
    """Options of ``saki bench rollout`` and ``saki bench train``: the models."""

    preset: str = option("tiny", "Models: tiny and qwen3-shapes are random, folders takes two of yours.")
    model: str | None = option(None, "Student of preset folders: a folder or hub name.")
    teacher_model: str | None = option(None, "Teacher of preset folders: a folder or hub name.")
    dtype: str = option("float32", "Dtype of both models: float32, float64, bfloat16.")
    device: str = option("auto", "cpu, cuda, or auto.")
    threads: int = option(1, "Threads of this process.")
    batch_size: int = option(8, "Completions that run at once.")
    prompt_length: int = option(64, "Tokens of each prompt.")
    repeats: int = option(5, "Timed runs of each arm; arms alternate.")
    seed: int = option(0, "Seed of prompts and random numbers.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without making anything."""
        counts = {"threads": 1, "batch_size": 1, "prompt_length": 1, "repeats": 1, "seed": 0}
        check_counts(self, **counts)
        check_dtype("dtype", self.dtype)
        check_device(self.device)
        for key in ("model", "teacher_model"):
            if getattr(self, key) is not None:
                check_model_name(key, getattr(self, key))


@dataclass
class BenchRolloutArguments(BenchPairArguments):
    """``saki bench rollout``."""

    max_completion_length: int = option(128, "Forced tokens of each completion; with --lengths lognormal the longest.")
    requests: int = option(0, "Completions in all; 0 for as many as run at once.")
    samples_per_prompt: int = option(1, "Completions of each prompt; above 1 the prefill work is compared as well.")
    lengths: str = option("fixed", "fixed, or lognormal (median 64, sigma 0.8) for continuous against static batching.")
    arms: str = option("default", "Arms, separated by commas; by default all that fit the lengths.")
    trust_region_radius: float = option(0.02, "Bound on KL(q||p), nats.")
    block_size: int = option(8, "Proposals per verification wave (K) of exact_q.")
    compile: bool = option(False, "Compile forwards and the bridge's passes (a minute or two to start).")

    def __post_init__(self) -> None:
        """Refuse what can be refused without making anything."""
        super().__post_init__()
        check_counts(self, max_completion_length=1, requests=0, samples_per_prompt=1, block_size=1)
        check_number("trust_region_radius", self.trust_region_radius, least=0)
        if self.trust_region_radius == 0:
            raise ValueError("trust_region_radius must be above 0, got 0; at 0 exact_q is student_only")
        if self.lengths not in ("fixed", "lognormal"):
            raise ValueError(f"lengths must be fixed or lognormal, got {self.lengths!r}")


@dataclass
class BenchBridgeArguments:
    """``saki bench bridge``."""

    vocab: str = option("4096,49152,152064", "Vocabulary sizes, separated by commas.")
    rows: int = option(8, "Rows of the block.")
    block_size: int = option(8, "Positions of each row (K).")
    trust_region_radius: float = option(0.02, "Bound on KL(q||p), nats.")
    compile: bool = option(False, "Compile the passes (the first call takes tens of seconds).")
    device: str = option("auto", "cpu, cuda, or auto.")
    threads: int = option(1, "Threads of this process.")
    repeats: int = option(5, "Timed runs of each solver; solvers alternate.")
    seed: int = option(0, "Seed of the laws.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without making anything."""
        check_counts(self, rows=1, block_size=1, threads=1, repeats=1, seed=0)
        check_number("trust_region_radius", self.trust_region_radius, least=0)
        check_device(self.device)
        for word in self.vocab.split(","):
            if not word.strip().isdecimal() or int(word) < 2:
                raise ValueError(f"vocab must be sizes of at least 2, separated by commas, got {self.vocab!r}")


@dataclass
class BenchTrainArguments(BenchPairArguments):
    """``saki bench train``."""

    max_completion_length: int = option(64, "Forced tokens of each completion.")
    methods: str = option("opd,opd_full", "Methods of saki to time beside TRL, separated by commas.")
    steps: int = option(3, "Timed steps of each training, after one to warm up.")
    compile: bool = option(False, "Compile the forwards of saki's engine (in the step to warm up).")

    def __post_init__(self) -> None:
        """Refuse what can be refused without making anything."""
        super().__post_init__()
        check_counts(self, max_completion_length=1, steps=1)
        for name in self.methods.split(","):
            get_method(name)
