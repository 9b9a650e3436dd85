"""``saki teacher``: GRPO with a rule-based reward."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from saki import lab
from saki.cli.console import git_commit, print_json, progress_bar, run_facts
from saki.cli.engines import model_engine
from saki.cli.train import SettingsCallback, check_run_folder, has_checkpoint, report_stop
from saki.config import CommandParser, UsageError, write_resolved
from saki.config.commands import CommonArguments
from saki.config.inputs import TeacherArguments
from saki.config.sources import LAB_HALF_TEACHER, LAB_PROMPTS, grader, model_path, named_reward, prompt_rows
from saki.evaluation import (
    Estimate,
    EvaluationResult,
    GradingPool,
    evaluate_model,
    lab_benchmarks,
    macro_average,
    mean_at_k,
    pass_at_k,
    text_table,
)
from saki.evaluation.grading.pool import usable_cores
from saki.files import write_text
from saki.lab.recipes import HALF_TEACHER
from saki.models import load_causal_lm, load_tokenizer
from saki.training import StopOnSignal
from saki.training.grpo.rewards import Reward, one_by_one
from saki.training.model_card import RunNames

SUMMARY = "Train a teacher by GRPO with a rule-based reward, through TRL. Every GRPOConfig field works as a key too."
EXAMPLE = "saki teacher configs/lab_teacher.yaml --out runs/teacher"


def parser() -> CommandParser:
    """The command's options; without TRL those of TRL are missing."""
    kinds: list[Any] = [CommonArguments, TeacherArguments]
    if importlib.util.find_spec("trl") is None:
        return CommandParser(kinds, "saki teacher", f"{SUMMARY} TRL is not installed.", EXAMPLE)
    from saki.training.grpo.config import TeacherConfig

    return CommandParser([*kinds, TeacherConfig], "saki teacher", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    if importlib.util.find_spec("trl") is None and not {"-h", "--help"} & set(argv):
        raise UsageError("saki teacher needs TRL; install the extra with: pip install 'saki[teacher]'")
    common, args, config = parser().parse(argv)
    from saki.training.grpo.trainer import TeacherTrainer

    if common.out:
        config.output_dir = common.out
        config.logging_dir = None
    for name in ("model", "dataset"):
        if getattr(args, name) is None:
            raise UsageError(f"saki teacher needs --{name}; {LAB_HALF_TEACHER} and lab name the embedded ones")
    if config.resume_from_checkpoint:
        raise UsageError("saki teacher goes on from the last good checkpoint of --out with --resume; give that instead")
    if args.num_problems and args.dataset != LAB_PROMPTS:
        raise UsageError("num_problems measures on the lab's sets, so it needs --dataset lab; use saki eval instead")
    grades = _grading(args, config.world_size)
    rows = prompt_rows(args.dataset, args.dataset_split, config.seed)
    folder = check_run_folder(config.run_dir, args.resume)
    path = _initial_model(args.model, folder, common, args, config)
    options = {"revision": args.revision, "trust_remote_code": config.trust_remote_code}
    tokenizer = load_tokenizer(path, **options)
    stop = StopOnSignal()
    with grades, stop:
        trainer = TeacherTrainer(
            model=load_causal_lm(path, dtype="float32", **options),
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
            grade=grades.grade,
            callbacks=[SettingsCallback(folder / "config.resolved.yaml", common, args, config), stop],
        )
        trainer.names = RunNames(args.model, None, args.dataset, git_commit())
        outcome = trainer.train(resume_from_checkpoint=args.resume and has_checkpoint(folder))
    if stop.stopped_by is not None:
        return report_stop(stop.stopped_by, outcome.global_step, trainer.state.max_steps, folder)
    trainer.save_model()
    facts: dict[str, Any] = {
        "steps": outcome.global_step,
        "model": str(trainer.model_folder),
        "seconds": outcome.metrics["train_runtime"],
        "commit": git_commit(),
    }
    if args.num_problems:
        measured = _measure(path, folder, args.num_problems, config.seed)
        facts |= measured
        trainer.names.figures = {name: value for name, value in measured.items() if name != "num_problems"}
        trainer.create_model_card()
    facts["cpu_seconds"] = round(time.process_time(), 1)
    print(f"model: {trainer.model_folder}")
    if common.json:
        print_json(facts)
    return 0


class _OneByOne:
    """A grader in this process, in the shape of a pool."""

    def __init__(self, reward: Reward) -> None:
        self.grade = one_by_one(reward)

    def __enter__(self) -> _OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to end."""


def _grading(args: TeacherArguments, world_size: int) -> GradingPool | _OneByOne:
    """The user's grader, the lab's, or math-verify in child processes."""
    if args.reward is not None:
        return _OneByOne(named_reward(args.reward))
    own = grader(args.dataset)
    if own is not None:
        return _OneByOne(own)
    workers = args.grading_workers or max(1, usable_cores() // world_size)
    return GradingPool(workers, args.grading_seconds)


def _initial_model(name: str, folder: Path, *parts: Any) -> str:
    """Where the model to train lies; the lab's half-trained teacher is built once, into the run folder.

    The settings are written before that, so that a run that is killed while it builds can be resumed.
    """
    if name != LAB_HALF_TEACHER:
        return model_path(name)
    initial = folder / "initial"
    if not initial.exists():
        write_resolved(folder / "config.resolved.yaml", *parts, facts=run_facts())
        lab.build_model(HALF_TEACHER, initial, num_problems=0)
    return str(initial)


def _measure(initial: str, folder: Path, num_problems: int, seed: int) -> dict[str, Any]:
    """Evaluate the initial model and the trained one on held-out problems, with the same random numbers.

    Returns:
        Mean@8 and Pass@8 of both in percent, and the gain with its 95% interval over problems, paired.
    """
    benchmarks = lab_benchmarks(num_problems)

    def measure(path: str, label: str) -> EvaluationResult:
        tokenizer = load_tokenizer(path)
        engine = model_engine(load_causal_lm(path, dtype=torch.float32), tokenizer, batch_rows=256, share=True)
        with progress_bar(label, "samples") as progress:
            return evaluate_model(engine, tokenizer, benchmarks, seed=seed, progress=progress)

    results = {"before": measure(initial, "before"), "after": measure(str(folder / "model"), "after")}
    stored = {label: result.to_json() for label, result in results.items()}
    write_text(folder / "evaluation.json", json.dumps(stored, indent=2))
    mean, passed = gain(results["before"], results["after"])
    print(text_table(results))
    facts: dict[str, Any] = {"num_problems": num_problems}
    for name, estimate, metric in (("mean_at_8", mean, "mean_at_k"), ("pass_at_8", passed, "pass_at_k")):
        for label, result in results.items():
            facts[f"{name}_{label}"] = round(100 * getattr(result, metric).value, 2)
        facts[f"{name}_gain"] = round(100 * estimate.value, 2)
        facts[f"{name}_gain_ci95"] = [round(100 * end, 2) for end in estimate.interval.to_json()]
        low, high = facts[f"{name}_gain_ci95"]
        print(f"{name} after - before: {facts[f'{name}_gain']:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}")
    return facts


def gain(before: EvaluationResult, after: EvaluationResult) -> tuple[Estimate, Estimate]:
    """Differences of Mean@k and Pass@k, macro-averaged over the sets, paired problem by problem."""
    pairs = [(one.correct, two.correct) for one, two in zip(before.sets, after.sets, strict=True)]
    return (
        macro_average([mean_at_k(two) - mean_at_k(one) for one, two in pairs]),
        macro_average([pass_at_k(two) - pass_at_k(one) for one, two in pairs]),
    )
