"""``saki demo``: distil the embedded pair on this machine, and show what it did."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from saki import lab
from saki.analysis.report import write_report
from saki.analysis.rollout_files import NUM_FILES
from saki.cli.console import fresh_folder, git_commit, print_json, progress_bar, run_facts
from saki.cli.engines import model_engine
from saki.cli.view import view_run
from saki.cli.view_verdicts import graded_by
from saki.config import CommandParser, write_resolved
from saki.config.commands import CommonArguments, DemoArguments, TrainArguments
from saki.config.recipes import lab_config
from saki.config.sources import LAB_PROMPTS, LAB_STUDENT, LAB_TEACHER, prompt_rows
from saki.evaluation import EvaluationResult, evaluate_model, lab_benchmarks, text_table
from saki.files import write_text
from saki.functional import pinsker_bound
from saki.models import load_causal_lm, load_tokenizer
from saki.rollout import read_rollouts
from saki.training import SakiTrainer
from saki.training.model_card import RunNames

SUMMARY = "Distil the embedded student from the embedded teacher on this machine, and write a report."
EXAMPLE = "saki demo --out runs/demo --json"

SAMPLING_SDS = 5.0
"""A step's correction rate violates the bound when it lies above it by more than this many standard deviations."""


class TeacherForwards:
    """Counts the teacher's forwards by a module hook, beside the engine's own counters."""

    def __init__(self, teacher: torch.nn.Module) -> None:
        self.count = 0
        self.handle = teacher.register_forward_hook(self._hook)

    def _hook(self, *_: Any) -> None:
        self.count += 1


class AnnealCounts:
    """Teacher forwards for q while the radius is above 0, and after it is 0: hook counts less scoring calls."""

    def __init__(self, trainer: SakiTrainer, forwards: TeacherForwards) -> None:
        self.during = self.after = 0
        engine, generate = trainer.engine, trainer.engine.generate

        def counted(prompts: Any, request: Any, progress: Any = None) -> Any:
            forwards_before, scores_before = forwards.count, engine.stats().teacher_score_forwards
            batch = generate(prompts, request, progress)
            spent = forwards.count - forwards_before - (engine.stats().teacher_score_forwards - scores_before)
            if request.trust_region_radius > 0:
                self.during += spent
            else:
                self.after += spent
            return batch

        engine.generate = counted  # type: ignore[method-assign]


def parser() -> CommandParser:
    """The command's options."""
    return CommandParser([CommonArguments, DemoArguments], "saki demo", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    common, args = parser().parse(argv)
    begin = time.perf_counter()
    torch.set_num_threads(1)
    folder = fresh_folder(common.out, "the demo") if common.out else Path(tempfile.mkdtemp(prefix="saki-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(str(lab.student_path()))
    student = load_causal_lm(str(lab.student_path()), dtype=torch.float32)
    teacher = load_causal_lm(str(lab.teacher_path()), dtype=torch.float32)
    benchmarks = lab_benchmarks(args.num_problems)

    def measure(model: PreTrainedModel, label: str) -> EvaluationResult:
        engine = model_engine(model, tokenizer, batch_rows=512)
        with progress_bar(f"evaluate {label}", "samples") as progress:
            return evaluate_model(
                engine, tokenizer, benchmarks, seed=args.seed, max_completion_length=64, progress=progress,
                samples_path=folder / "samples" / label.replace(" ", "_"),
            )  # fmt: skip

    results: dict[str, EvaluationResult] = {}

    def keep(key: str, result: EvaluationResult) -> EvaluationResult:
        """Results are on disk as they come."""
        results[key] = result
        stored = {name: value.to_json() for name, value in results.items()}
        write_text(folder / "evaluation.json", json.dumps(stored, indent=2))
        return result

    before = keep("before", measure(student, "student before"))
    of_teacher = keep("teacher", measure(teacher, "teacher"))
    pair = TrainArguments(model=LAB_STUDENT, teacher_model=LAB_TEACHER, dataset=LAB_PROMPTS)
    config = lab_config(str(folder), method=args.method, max_steps=args.max_steps, seed=args.seed)
    write_resolved(folder / "config.resolved.yaml", pair, config, facts=run_facts())  # saki train takes it
    trainer = SakiTrainer(
        model=student,
        teacher_model=teacher,
        args=config,
        train_dataset=prompt_rows(LAB_PROMPTS, seed=args.seed),
        processing_class=tokenizer,
    )
    counts = AnnealCounts(trainer, TeacherForwards(teacher))
    trainer.names = RunNames(LAB_STUDENT, LAB_TEACHER, LAB_PROMPTS, git_commit())
    trainer.train()
    trainer.save_model()
    after = keep("after", measure(student, "student after"))
    trainer.names.figures = {
        f"Mean@8 of the {label}, %": percent(result.mean_at_k.value)
        for label, result in (("initial student", before), ("student", after), ("teacher", of_teacher))
    }
    trainer.create_model_card()
    with ExitStack() as stack:
        trace = view_run(
            folder, tokenizer, graded_by(LAB_PROMPTS, tokenizer, stack, seed=args.seed), max_files=NUM_FILES
        )
    report = write_report(folder, decode=lambda ids: str(tokenizer.decode(ids)))
    print()
    print(text_table({"student before": before, "student after": after, "teacher": of_teacher}))
    print()
    bounded = trainer.method.behavior != "skd"
    positions, steps = pinsker_violations(folder / "rollouts") if bounded else (0, 0)
    seconds = time.perf_counter() - begin
    if bounded:
        print(f"corrections above the Pinsker bound: {positions} positions, {steps} steps")
    else:
        print(f"no radius bounds the corrections of {args.method}")
    print(f"teacher forwards for the bridge: {counts.during} while annealing, {counts.after} after")
    print(f"trace:  {trace}")
    print(f"report: {report}   ({seconds:.0f} s)")
    if common.json:
        print_json(
            {
                "mean_at_8_before": percent(before.mean_at_k.value),
                "mean_at_8_after": percent(after.mean_at_k.value),
                "pass_at_8_before": percent(before.pass_at_k.value),
                "pass_at_8_after": percent(after.pass_at_k.value),
                "teacher_mean_at_8": percent(of_teacher.mean_at_k.value),
                "pinsker_violations": positions + steps if bounded else None,
                "teacher_q_forwards_during_anneal": counts.during,
                "teacher_q_forwards_after_anneal": counts.after,
                "seconds": round(seconds, 1),
                "report": str(report),
                "trace": str(trace),
                "method": args.method,
                "commit": git_commit(),
            }
        )
    return 0


def percent(share: float) -> float:
    """A share in percent, to two digits."""
    return round(100 * share, 2)


def pinsker_violations(folder: Path) -> tuple[int, int]:
    """Check every stored position and step against sqrt(radius / 2) (Eq. 11).

    Returns:
        Positions whose TV lies above the bound by more than 1e-5 relative, and steps whose realised correction
        rate lies above it by more than :data:`SAMPLING_SDS` binomial standard deviations at the bound.
    """
    positions = steps = 0
    for path in sorted(folder.glob("*.parquet")):
        batch, _ = read_rollouts(path)
        bound = pinsker_bound(batch.trust_region_radius)
        mask = batch.response_mask
        positions += int((batch.tv[mask].double() > bound * (1 + 1e-5)).sum())
        tokens = batch.num_valid_tokens
        rate = int(batch.correction_mask.sum()) / max(tokens, 1)
        steps += rate > bound + SAMPLING_SDS * math.sqrt(bound * (1 - min(bound, 1.0)) / max(tokens, 1))
    return positions, steps
