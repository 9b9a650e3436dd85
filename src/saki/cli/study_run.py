"""One run of a study, from a student to its answers on every set."""

from __future__ import annotations

import copy
import functools
import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from saki.analysis.study_results import RESULT
from saki.cli.console import git_commit, run_facts
from saki.cli.engines import model_engine
from saki.cli.study_files import CHECKPOINTS, CPU_SECONDS, begin, forget_evaluations
from saki.config import write_resolved
from saki.config.commands import TrainArguments
from saki.config.sources import model_path, prompt_rows
from saki.config.study import TEACHER, StudyRun
from saki.evaluation import Benchmark, evaluate_model, lab_benchmarks
from saki.files import write_text
from saki.models import load_causal_lm, load_tokenizer
from saki.training import CheckpointError, SakiConfig, SakiTrainer
from saki.training.checkpoint import list_checkpoints
from saki.training.model_card import RunNames

logger = logging.getLogger(__name__)

EVALUATION_ROWS = 512

ReportProgress = Callable[[str, int, int], None]
"""(what is going on, done, total)."""


def execute(run: StudyRun, folder: Path, report: ReportProgress) -> None:
    """Carry a run to its end; a half-finished one goes on from its last checkpoint.

    ``result.json`` appears last and in one piece: a run with it is finished, a run without it is not.

    Args:
        run: The run.
        folder: Its folder.
        report: Hears of progress.

    Raises:
        ValueError: If the folder holds a half-finished run of other settings.
    """
    begin(run, folder)
    name = run.teacher if run.label == TEACHER else run.student
    tokenizer = load_tokenizer(model_path(name))
    model = load_causal_lm(model_path(name), dtype=torch.float32)
    clock = _Clock(folder)
    evaluations = _Evaluations(run, folder, tokenizer, report, clock)
    if run.trains:
        _train(run, folder, model, tokenizer, evaluations, report)
    evaluations.measure(model, run.max_steps)
    result = {
        "fingerprint": run.fingerprint,
        "run": run.to_json(),
        **clock.read(),
        "steps": evaluations.read(),
        **run_facts(),
    }
    write_text(folder / RESULT, json.dumps(result))
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _train(
    run: StudyRun,
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    evaluations: _Evaluations,
    report: ReportProgress,
) -> None:
    config = run.config(str(folder))
    names = TrainArguments(model=run.student, teacher_model=run.teacher, dataset=run.dataset)
    write_resolved(folder / "config.resolved.yaml", names, config, facts=run_facts())
    initial = copy.deepcopy(model.state_dict())
    try:
        trainer = _trainer(run, config, model, tokenizer, evaluations, report)
        trainer.train(resume_from_checkpoint=bool(list_checkpoints(folder / CHECKPOINTS)))
    except CheckpointError as error:
        logger.warning("%s; %s starts again from step 1", error, folder)
        shutil.rmtree(folder / CHECKPOINTS)
        forget_evaluations(folder)
        model.load_state_dict(initial)
        trainer = _trainer(run, run.config(str(folder)), model, tokenizer, evaluations, report)
        trainer.train()
    trainer.names = RunNames(run.student, run.teacher, run.dataset, git_commit())
    trainer.save_model()


def _trainer(
    run: StudyRun,
    config: SakiConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    evaluations: _Evaluations,
    report: ReportProgress,
) -> SakiTrainer:
    return SakiTrainer(
        model=model,
        teacher_model=load_causal_lm(model_path(run.teacher), dtype=torch.float32),
        args=config,
        train_dataset=prompt_rows(run.dataset, seed=run.seed),
        processing_class=tokenizer,
        callbacks=[_Progress(report, evaluations)],
    )


class _Clock:
    """CPU seconds of a run by part, over all processes that had a hand in it.

    What a killed process did after the last time it was written down is lost: it is done again. Steps between its last
    checkpoint and a later evaluation are done and counted again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / CPU_SECONDS
        self._seconds = {"train": 0.0, "evaluation": 0.0}
        if self._path.is_file():
            try:
                known = json.loads(self._path.read_text(encoding="utf-8"))
                self._seconds = {part: float(known[part]) for part in self._seconds}
            except (ValueError, KeyError, TypeError):
                logger.warning("%s is damaged; CPU seconds are counted from here on", self._path)
        self._since = time.process_time()

    def count(self, part: Literal["train", "evaluation"]) -> None:
        """Book the time since the last booking, and write it down."""
        now = time.process_time()
        self._seconds[part] += now - self._since
        self._since = now
        write_text(self._path, json.dumps(self._seconds))

    def read(self) -> dict[str, float]:
        """Fields of a result."""
        return {f"{part}_cpu_seconds": round(seconds, 2) for part, seconds in self._seconds.items()}


class _Evaluations:
    """Evaluations of one run, each on disk once it is there."""

    def __init__(
        self,
        run: StudyRun,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        report: ReportProgress,
        clock: _Clock,
    ) -> None:
        self._run, self._folder, self._tokenizer, self._report = run, folder, tokenizer, report
        self.clock = clock

    def measure(self, model: PreTrainedModel, step: int) -> None:
        """Evaluate the model, unless this step's result is there."""
        path = self._path(step)
        self.clock.count("train")
        if path.is_file():
            return
        run = self._run
        result = evaluate_model(
            model_engine(model, self._tokenizer, batch_rows=EVALUATION_ROWS),
            self._tokenizer,
            benchmarks(run.num_problems, run.split),
            seed=run.seed,
            num_samples=run.num_samples,
            max_completion_length=run.max_new_tokens,
            progress=lambda done, total: self._report("evaluation", done, total),
        )
        sets = {
            each.name: {
                "num_right": each.correct.sum(axis=1).tolist(),
                "num_samples": each.num_samples,
                "truncated": each.truncated,
            }
            for each in result.sets
        }
        write_text(path, json.dumps({"sets": sets}))
        self.clock.count("evaluation")

    def in_training(self, model: PreTrainedModel, step: int) -> None:
        """Evaluate where the run asks for it."""
        if step in self._run.evaluate_at:
            self.measure(model, step)

    def read(self) -> dict[str, Any]:
        """Results by step."""
        steps = (*self._run.evaluate_at, self._run.max_steps)
        return {str(step): json.loads(self._path(step).read_text())["sets"] for step in steps}

    def _path(self, step: int) -> Path:
        return self._folder / f"evaluation-{step:06d}.json"


class _Progress(TrainerCallback):
    """Reports steps, and evaluates on the way."""

    def __init__(self, report: ReportProgress, evaluations: _Evaluations) -> None:
        self._report, self._evaluations = report, evaluations

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Report the step."""
        self._report("training", state.global_step, state.max_steps)
        self._evaluations.in_training(model, state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Book the time that led to a checkpoint."""
        self._evaluations.clock.count("train")


@functools.lru_cache(maxsize=4)
def benchmarks(num_problems: int, split: str) -> tuple[Benchmark, ...]:
    """The lab's sets, made once a process."""
    return lab_benchmarks(num_problems, split=split)  # type: ignore[arg-type]  # checked when the study was read
