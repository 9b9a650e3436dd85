"""``saki train``: distil a teacher into a student."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers import IntervalStrategy, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from saki.cli.console import git_commit, holdings, print_json, run_facts
from saki.cli.run_pages import write_pages
from saki.cli.signals import exit_code
from saki.config import CommandParser, UsageError, write_resolved
from saki.config.commands import CommonArguments, TrainArguments
from saki.config.sources import grader, model_path, prompt_rows
from saki.models import compare_tokenizers, load_causal_lm, load_teacher, load_tokenizer
from saki.training import SakiConfig, SakiTrainer, StopOnSignal
from saki.training.checkpoint import list_checkpoints
from saki.training.model_card import RunNames

logger = logging.getLogger(__name__)

SUMMARY = "Distil a teacher into a student by a registered method. Every TrainingArguments field works as a key too."
EXAMPLE = "saki train configs/lab.yaml --method trb --seed 1 --out runs/trb-1"


def parser() -> CommandParser:
    """The command's options."""
    return CommandParser([CommonArguments, TrainArguments, SakiConfig], "saki train", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    common, args, config = parser().parse(argv)
    if common.out:
        config.output_dir = common.out
        config.logging_dir = None
    for name in ("model", "teacher_model", "dataset"):
        if getattr(args, name) is None:
            raise UsageError(f"saki train needs --{name}; lab/student, lab/teacher and lab name the embedded ones")
    if config.resume_from_checkpoint:
        raise UsageError("saki train goes on from the last good checkpoint of --out with --resume; give that instead")
    evaluates = config.eval_strategy != IntervalStrategy.NO
    if args.eval_dataset is None and (evaluates or config.eval_on_start):
        key, value = ("eval_strategy", config.eval_strategy.value) if evaluates else ("eval_on_start", "true")
        raise UsageError(
            f"{key} is {value}, but there is no eval_dataset; give --eval_dataset, for example lab/development, or "
            f"leave {key} out"
        )
    folder = check_run_folder(config.run_dir, args.resume)
    student_path, teacher_path = model_path(args.model), model_path(args.teacher_model)
    options = {"trust_remote_code": args.trust_remote_code}
    tokenizer = load_tokenizer(student_path, revision=args.revision, **options)
    teacher_tokenizer = load_tokenizer(teacher_path, **options)
    compare_tokenizers(tokenizer, teacher_tokenizer)
    peft_config = lora_config(args.lora_rank, args.lora_alpha) if args.lora_rank else None
    rows = prompt_rows(args.dataset, args.dataset_split, config.seed)
    eval_rows = prompt_rows(args.eval_dataset, None, config.seed) if args.eval_dataset else None
    student = load_causal_lm(student_path, dtype="float32", revision=args.revision, **options)
    teacher = load_teacher(teacher_path, dtype=args.teacher_dtype, runs_on=config.device, **options)
    stop = StopOnSignal()
    with _no_empty_folder(folder):
        trainer = SakiTrainer(
            model=student,
            teacher_model=teacher,
            args=config,
            train_dataset=rows,
            eval_dataset=eval_rows,
            eval_grader=grader(args.eval_dataset),
            processing_class=tokenizer,
            teacher_processing_class=teacher_tokenizer,
            peft_config=peft_config,
            callbacks=[SettingsCallback(folder / "config.resolved.yaml", common, args, config), stop],
        )
        trainer.names = RunNames(args.model, args.teacher_model, args.dataset, git_commit())
        with stop:
            outcome = trainer.train(resume_from_checkpoint=args.resume and has_checkpoint(folder))
    if stop.stopped_by is None:
        trainer.save_model()
    if trainer.ranks.size > 1:
        trainer.accelerator.end_training()  # leaves the process group
    if not trainer.ranks.is_first:  # one speaks for all
        return 0 if stop.stopped_by is None else exit_code(stop.stopped_by)
    if stop.stopped_by is not None:
        return report_stop(stop.stopped_by, outcome.global_step, trainer.state.max_steps, folder)
    trace, report = write_pages(folder, tokenizer)
    pages = "".join(f"   {name}: {page}" for name, page in (("trace", trace), ("report", report)) if page)
    print(f"model: {folder / 'model'}{pages}")
    if common.json:
        print_json(
            {
                "steps": outcome.global_step,
                "train_loss": outcome.training_loss,
                "model": str(folder / "model"),
                "trace": str(trace) if trace else None,
                "report": str(report) if report else None,
                "seconds": outcome.metrics["train_runtime"],
                "commit": git_commit(),
            }
        )
    return 0


def report_stop(signum: int, step: int, max_steps: int, folder: Path) -> int:
    """Say on stderr where a training that a signal ended has left its work.

    Args:
        signum: The signal.
        step: Last step, whose checkpoint is written.
        max_steps: Steps that were asked for.
        folder: The run folder.

    Returns:
        The exit code.
    """
    print(
        f"saki: {signal.Signals(signum).name}: stopped after step {step} of {max_steps}, all of it is in "
        f"{list_checkpoints(folder / 'checkpoints')[0]}; the same command with --resume goes on",
        file=sys.stderr,
    )
    return exit_code(signum)


class SettingsCallback(TrainerCallback):
    """Writes the settings when training begins.

    Not before: a start that fails leaves the folder free for the corrected command, and a resume that is refused
    leaves the settings of the run as they were.
    """

    def __init__(self, path: Path, *parts: Any) -> None:
        self.path, self.parts = path, parts

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write them."""
        if state.is_world_process_zero:
            write_resolved(self.path, *self.parts, facts=run_facts())


def check_run_folder(folder: Path, resume: bool) -> Path:
    """The run folder: empty or absent for a new run, with a run in it for a resumed one.

    Raises:
        ValueError: If it is in use by an earlier run and ``--resume`` was not given, if there is no run to resume,
            or if it cannot be written.
    """
    taken = holdings(folder)
    if taken and not resume:
        raise UsageError(f"{folder} holds an earlier run ({taken[0]}, ...); add --resume to go on, or another --out")
    if resume and "config.resolved.yaml" not in taken and not list_checkpoints(folder / "checkpoints"):
        raise UsageError(f"there is no run in {folder} to resume; check --out, or leave --resume away to start one")
    return folder


@contextmanager
def _no_empty_folder(folder: Path) -> Iterator[None]:
    """When a start fails, take away the run folder and those made for it as far as they hold nothing."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


def has_checkpoint(folder: Path) -> bool:
    """Whether a resumed run has something to go on from; a run stopped before its first checkpoint starts again."""
    if list_checkpoints(folder / "checkpoints"):
        return True
    logger.warning("%s holds no checkpoint yet; starting from step 1", folder)
    return False


def lora_config(rank: int, alpha: int) -> object:
    """A LoRA configuration on all linear layers.

    Raises:
        ValueError: If peft is not installed.
    """
    try:
        from peft import LoraConfig
    except ImportError:
        raise UsageError("--lora_rank needs peft; install it with: pip install 'saki[peft]'") from None
    return LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
