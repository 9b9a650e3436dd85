"""``saki bench train``: a step of saki's trainer against a step of TRL's distillation trainer."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback

from saki.benchmarking.pairs import BenchPair
from saki.benchmarking.spread import spread
from saki.benchmarking.steps import StepTimes, StepTimesCallback, TimedEngine, check_lengths
from saki.models import resolve_pair
from saki.rollout import RolloutEngine
from saki.training import SakiConfig, SakiTrainer
from saki.training.engines import resident_engine
from saki.training.teacher import VocabularyTeacher
from saki.types import RolloutBatch

LOSSES = {
    "opd": "sampled reverse KL (score function of the sampled token)",
    "opd_full": "reverse KL over the whole vocabulary at each position",
    "trl": "generalised Jensen-Shannon with beta = 1: reverse KL over the whole vocabulary at each position",
}
"""What each arm's step minimises."""

PHASES = ("generation", "scoring", "sync")
"""Phases that are charged; what is left of a step is its update."""


class TrlMissingError(ValueError):
    """TRL is not installed, or has no trainer for on-policy distillation."""


@dataclass(frozen=True)
class TrainWork:
    """What a step of each arm does: n = 1 completion for each prompt, all of one forced length.

    Attributes:
        pair: The models; each arm trains a student of its own.
        prompts: Texts of the prompts.
        batch_size: Prompts a step, one micro-batch.
        length: Forced completion length (tokens).
        steps: Timed steps; one before them warms up.
        learning_rate: Learning rate of AdamW.
        seed: Seed of both trainers.
        compiled: Whether the forwards of saki's engine are compiled.
    """

    pair: BenchPair
    prompts: tuple[str, ...]
    batch_size: int
    length: int
    steps: int
    learning_rate: float = 1e-6
    seed: int = 0
    compiled: bool = False

    def library_arguments(self, folder: Path) -> dict[str, Any]:
        """Arguments that both trainers get."""
        return {
            "output_dir": str(folder),
            "max_steps": self.steps + 1,
            "per_device_train_batch_size": self.batch_size,
            "gradient_accumulation_steps": 1,
            "max_completion_length": self.length,
            "learning_rate": self.learning_rate,
            "lr_scheduler_type": "constant",
            "weight_decay": 0.01,
            "max_grad_norm": 1.0,
            "bf16": False,
            "save_strategy": "no",
            "report_to": "none",
            "logging_steps": 10**6,
            "disable_tqdm": True,
            "seed": self.seed,
            "use_cpu": self.pair.device.type == "cpu",
        }


def saki_steps(work: TrainWork, method: str, folder: Path) -> StepTimes:
    """Steps of :class:`SakiTrainer` with a method."""
    times = StepTimes()
    student, teacher = work.pair.build("student"), work.pair.build("teacher")
    tokenizer = work.pair.tokenizer
    assert tokenizer is not None
    args = SakiConfig(
        method=method,
        prompts_per_step=work.batch_size,
        num_generations=1,
        rollout_batch_rows=work.batch_size,
        save_rollouts_steps=0,
        **work.library_arguments(folder),
    )
    student.config.eos_token_id = tokenizer.eos_token_id  # the pair is resolved with it, and then ignores it
    spec = replace(resolve_pair(student, teacher, tokenizer, None), stop_token_ids=())
    resident = resident_engine(
        student,
        teacher,
        spec,
        dtype=student.dtype,
        device=work.pair.device,
        max_batch_rows=work.batch_size,
        compiled=work.compiled,
    )
    engine: RolloutEngine = TimedEngine(resident, times, work.length)
    trainer = SakiTrainer(
        model=student,
        teacher_model=teacher,
        args=args,
        train_dataset=[{"prompt": text} for text in work.prompts],
        processing_class=tokenizer,
        engine=engine,
        callbacks=[StepTimesCallback(times)],
    )
    with _timed_scores(times):
        trainer.train()
    return times


@contextmanager
def _timed_scores(times: StepTimes) -> Iterator[None]:
    """Charges the teacher's pass of a loss over the whole vocabulary to scoring."""
    original = VocabularyTeacher.score

    def score(teacher: VocabularyTeacher, batch: RolloutBatch) -> RolloutBatch:
        with times.phase("scoring"):
            return original(teacher, batch)

    VocabularyTeacher.score = score  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        VocabularyTeacher.score = original  # type: ignore[method-assign]


def trl_steps(work: TrainWork, folder: Path) -> StepTimes:
    """Steps of TRL's ``DistillationTrainer``, with ``generate`` of transformers.

    The teacher's pass through its layers is charged to scoring; its projection to the vocabulary is part of TRL's
    chunked loss and counts as update. Gradient checkpointing and bfloat16, which TRL turns on by default, are off as
    in saki.

    Raises:
        TrlMissingError: If TRL is not installed or has no such trainer.
    """
    if importlib.util.find_spec("trl") is None:
        raise TrlMissingError(
            "saki bench train needs TRL to compare with; install the extra with pip install saki[bench]"
        )
    try:
        trl: Any = importlib.import_module("trl")
        config_type, trainer_type = trl.DistillationConfig, trl.DistillationTrainer
    except (ImportError, AttributeError) as error:
        raise TrlMissingError(
            f"the installed TRL has no DistillationTrainer to compare with ({error}); install a newer one"
        ) from error
    times = StepTimes()

    class Timed(trainer_type):  # type: ignore[misc, valid-type]
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            self.model.generation_config.eos_token_id = None  # the library took it over from the tokenizer
            times.prompt_tokens += sum(len(ids) for ids in args[0])
            with times.phase("generation"):
                completions = super()._generate_single_turn(*args, **kwargs)
            check_lengths("TRL", [len(ids) for ids in completions], work.length)
            return completions

        def _get_last_hidden_state(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            if model is not self.accelerator.unwrap_model(self.teacher_model):
                return super()._get_last_hidden_state(model, *args, **kwargs)
            with times.phase("scoring"):
                return super()._get_last_hidden_state(model, *args, **kwargs)

    student, teacher = work.pair.build("student"), work.pair.build("teacher")
    for model in (student, teacher):
        model.config.eos_token_id = model.generation_config.eos_token_id = None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # names that TRL still uses of transformers
        trainer = Timed(
            model=student,
            teacher_model=teacher,
            args=config_type(
                beta=1.0,
                temperature=1.0,
                gradient_checkpointing=False,
                generation_kwargs={"eos_token_id": None},
                **work.library_arguments(folder),
            ),
            train_dataset=Dataset.from_list([{"prompt": text} for text in work.prompts]),
            processing_class=work.pair.tokenizer,
            callbacks=[StepTimesCallback(times)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.eos_token_ids = [-1]  # else completions would be cut at the first end token that was sampled
        trainer.train()
    return times


def bench_train(
    pair: BenchPair,
    *,
    methods: Sequence[str] = ("opd", "opd_full"),
    batch_size: int = 8,
    prompt_length: int = 32,
    length: int = 64,
    repeats: int = 3,
    steps: int = 3,
    seed: int = 0,
    compiled: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Time optimizer steps of saki's methods and of TRL on the same work; arms alternate from repeat to repeat.

    Args:
        pair: The models; it needs a tokenizer.
        methods: saki's methods.
        batch_size: Prompts a step.
        prompt_length: Tokens of each prompt.
        length: Forced completion length (tokens).
        repeats: Trainings of each arm.
        steps: Timed steps of a training, after one to warm up.
        seed: Seed of prompts and trainers.
        compiled: Whether the forwards of saki's engine are compiled.
        progress: Told what runs.

    Returns:
        ``{"workload": ..., "arms": {name: {"step_s", "generation_s", "scoring_s", "update_s", "sync_s", "ratio_to_trl",
        "loss"}}}``; seconds are medians over all timed steps.

    Raises:
        TrlMissingError: If TRL is not there.
        ValueError: If the pair has no tokenizer.
    """
    if pair.tokenizer is None:
        raise ValueError(f"preset {pair.name!r} has no tokenizer, which trainers need; take tiny or folders")
    say = progress or (lambda _: None)
    prompts = pair.prompt_ids((steps + 1) * batch_size, prompt_length, seed)
    texts = tuple(str(pair.tokenizer.decode(list(ids))) for ids in prompts)
    work = TrainWork(pair, texts, batch_size, length, steps, seed=seed, compiled=compiled)
    arms: dict[str, Callable[[Path], StepTimes]] = {
        "trl": lambda folder: trl_steps(work, folder),
        **{name: (lambda folder, name=name: saki_steps(work, name, folder)) for name in methods},  # type: ignore[misc]
    }
    prompt_tokens: dict[str, int] = {}
    timed: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    order: list[list[str]] = []
    names = list(arms)
    for repeat in range(repeats):
        turn = names[repeat % len(names) :] + names[: repeat % len(names)]
        order.append(turn)
        for name in turn:
            say(f"{name}: repeat {repeat + 1} of {repeats}")
            with tempfile.TemporaryDirectory() as folder:
                times = arms[name](Path(folder))
            timed[name] += times.steps[1:]
            prompt_tokens[name] = times.prompt_tokens
            if pair.device.type == "cuda":
                torch.cuda.empty_cache()
    if len(set(prompt_tokens.values())) > 1:
        raise RuntimeError(f"the trainers read the prompts as different numbers of tokens: {prompt_tokens}")
    results = {name: _train_result(name, steps_of) for name, steps_of in timed.items()}
    for result in results.values():
        result["ratio_to_trl"] = result["step_s"] / results["trl"]["step_s"]
    workload = {
        "models": pair.description,
        "prompts_per_step": batch_size,
        "samples_per_prompt": 1,
        "prompt_length": prompt_length,
        "completion_length": length,
        "dtype": str(pair.build("student").dtype).removeprefix("torch."),
        "seed": seed,
    }
    return {"workload": workload, "order": order, "arms": results}


def _train_result(name: str, steps: Sequence[dict[str, float]]) -> dict[str, Any]:
    whole = [step["step"] for step in steps]
    result: dict[str, Any] = {"step_s": median(whole), "spread_step_s": spread(whole)}
    for phase in PHASES:
        result[f"{phase}_s"] = median(step.get(phase, 0.0) for step in steps)
    result["update_s"] = median(step["step"] - sum(step.get(phase, 0.0) for phase in PHASES) for step in steps)
    return {**result, "steps": len(whole), "loss": LOSSES.get(name, f"as of method {name}")}
