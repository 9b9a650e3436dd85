"""``saki study``: methods x seeds x students, resumable, with tables that have intervals."""

from __future__ import annotations

import fcntl
import logging
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from saki.analysis.study_folder import RESULTS
from saki.analysis.study_results import SetScore, gather, write_results
from saki.analysis.study_tables import Arms, steps_tables, study_tables, write_tables
from saki.cli.console import git_commit, print_json
from saki.cli.study_board import Board
from saki.cli.study_files import check_half_done, finished, scores
from saki.cli.study_known import check_nothing_lost, known_scores
from saki.cli.study_pool import PoolState, WorkerPool
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments, StudyArguments
from saki.config.sources import model_path, prompt_rows
from saki.config.study import STUDENT, TEACHER, Study, StudyRun, chosen_runs, folder_name, read_study, with_reference
from saki.files import write_text
from saki.models import compare_tokenizers, load_tokenizer
from saki.probe import read_probe

logger = logging.getLogger(__name__)

SUMMARY = "Run a study file: methods x seeds x students, several at once. Started again it goes on where it stopped."
EXAMPLE = "saki study examples/study_smoke.yaml --jobs 2 --out runs/study"
ALL_TABLES = "tables.md"
TABLES_SECONDS = 30.0
"""Least time between two writings of the tables while runs go on."""


def parser() -> CommandParser:
    """The command's options; the study file comes before them."""
    return CommandParser([CommonArguments, StudyArguments], "saki study STUDY.yaml", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    words = list(argv)
    named = bool(words) and not words[0].startswith("-")
    path = Path(words.pop(0)) if named else None
    common, args = parser().parse(words)
    if path is None:
        raise UsageError(f"saki study needs a study file, for example: {EXAMPLE}")
    if args.jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {args.jobs}")
    study = read_study(path)
    if args.reference is not None:
        study = with_reference(study, args.reference)
    chosen = chosen_runs(study, args.only, args.only_seeds, args.only_students)
    folder = Path(common.out or f"runs/{path.stem}")
    begin = time.perf_counter()
    with _claimed(folder):
        here = {each.folder for each in study.runs if finished(each, _folder(folder, each))}
        elsewhere = known_scores(study.runs, args.known)
        check_nothing_lost(folder, elsewhere)
        known = {name: found for name, found in elsewhere.items() if name not in here}
        complete = here | known.keys()
        done = [each for each in study.runs if each.folder in complete]
        waiting = [] if args.tables_only else [each for each in chosen if each.folder not in complete]
        for each in waiting:
            check_half_done(each, _folder(folder, each))
        _check_inputs(waiting)
        write_text(folder / "study.yaml", path.read_text(encoding="utf-8"))
        pool = WorkerPool(waiting, folder, args.jobs)
        board = Board(chosen, [each for each in chosen if each.folder in complete], args.jobs)
        tables = Tables(study, folder, done, known)

        def on_change(state: PoolState) -> None:
            board.show(state)
            tables.refresh(state)

        try:
            with _terminable():
                pool.carry_out(on_change)
        finally:
            board.show(pool.state, last=True)
            tables.write(pool.state)
    failed = pool.state.failed
    if tables.paths and not any(each.label == study.reference for each in tables.complete(pool.state)):
        print(f"saki: no run of {study.reference} is finished, so no difference to it is shown", file=sys.stderr)
    if tables.paths:
        print((folder / ALL_TABLES).read_text())
        print(f"results: {folder / RESULTS}   tables: {folder / ALL_TABLES}")
    if common.json:
        print_json(
            {
                "runs": len(study.runs),
                "chosen": len(chosen),
                "finished": len(tables.complete(pool.state)),
                "finished_now": len(pool.state.finished),
                "failed": {each.folder: reason for each, reason in failed},
                "results": str(folder / RESULTS),
                "tables": [str(table) for table in tables.paths],
                "seconds": round(time.perf_counter() - begin, 1),
                "commit": git_commit(),
            }
        )
    if failed:
        print(f"saki: {len(failed)} of {len(study.runs)} runs failed; start the study again to retry", file=sys.stderr)
    return 1 if failed else 0


class Tables:
    """The tables of a study, now and then while it runs and at its end."""

    def __init__(
        self, study: Study, folder: Path, done: Sequence[StudyRun], known: Mapping[str, list[SetScore]] | None = None
    ) -> None:
        self._study, self._folder, self._done, self._known = study, folder, done, known or {}
        self._at, self._count = time.monotonic(), len(done)
        self.paths: list[Path] = []

    def complete(self, state: PoolState) -> list[StudyRun]:
        """Runs that are finished, in the order of the study."""
        complete = {each.folder for each in (*self._done, *(run for run, _ in state.finished))}
        return [each for each in self._study.runs if each.folder in complete]

    def refresh(self, state: PoolState) -> None:
        """Write them again if runs were finished since, and the last time is a while ago."""
        count = len(self._done) + len(state.finished)
        if count > self._count and time.monotonic() - self._at > TABLES_SECONDS:
            self._at, self._count = time.monotonic(), count
            try:
                self.write(state)
            except (ValueError, OSError) as error:  # the runs go on; at the end it is an error
                logger.warning("the tables could not be written: %s", error)

    def write(self, state: PoolState) -> None:
        """Write them."""
        complete = self.complete(state)
        found = [score for each in complete for score in self._known.get(each.folder) or self._scores(each)]
        self.paths = write_tables_of(self._study, found, self._folder)

    def _scores(self, run: StudyRun) -> list[SetScore]:
        return scores(run, _folder(self._folder, run))


def write_tables_of(study: Study, found: Sequence[SetScore], folder: Path) -> list[Path]:
    """Write ``results.parquet`` and every table that the scores of the finished runs allow.

    Returns:
        The Markdown files of the last step's tables.
    """
    if not found:
        return []
    write_results(folder / RESULTS, found)
    written: list[Path] = []
    steps = sorted({score.step for score in found if score.method}) or [0]
    samples = {step: samples_at(study, found, None if step == steps[-1] else step) for step in steps}
    if not samples[steps[-1]]:  # the teacher alone makes no table
        return []
    num_samples = found[0].num_samples
    for step in steps:
        last = step == steps[-1]
        tables = study_tables(samples[step], study.reference, num_samples)
        tables += steps_tables(samples, num_samples) if last else []
        target = folder / "tables" if last else _of_step(folder, step)
        paths = write_tables(target, tables)
        if last:
            written = paths
            write_text(folder / ALL_TABLES, "\n".join(table.markdown() for table in tables))
    for stale in set((folder / "tables").glob("step-*")) - {_of_step(folder, step) for step in steps[:-1]}:
        write_tables(stale, [])
    return written


def _of_step(folder: Path, step: int) -> Path:
    return folder / "tables" / f"step-{step:06d}"


def samples_at(study: Study, found: Sequence[SetScore], step: int | None) -> dict[str, Arms]:
    """By student, what its arms measured after a step; None for the last."""
    students: dict[str, Arms] = {}
    for student in study.students:
        name = folder_name(student)
        arms = {
            TEACHER: gather(found, folder_name(study.students[0]), TEACHER, None),
            STUDENT: gather(found, name, STUDENT, None),
            **{arm.label: gather(found, name, arm.label, step) for arm in study.arms},
        }
        known = {label: sample for label, sample in arms.items() if sample is not None}
        if set(known) - {TEACHER}:
            students[name] = known
    return students


def _check_inputs(runs: Sequence[StudyRun]) -> None:
    """Read tokenizers, prompts and probes: a missing or damaged one is told before the first run and not by each."""
    names = {run.teacher if run.label == TEACHER else run.student for run in runs}
    names |= {run.teacher for run in runs if run.trains}
    tokenizers = {name: load_tokenizer(model_path(name)) for name in sorted(names)}
    for student, teacher in sorted({(run.student, run.teacher) for run in runs if run.trains}):
        try:
            compare_tokenizers(tokenizers[student], tokenizers[teacher])
        except ValueError as error:
            raise UsageError(f"{student} cannot learn from {teacher}: {error}") from error
    for dataset in sorted({run.dataset for run in runs if run.trains}):
        prompt_rows(dataset)
    probes = {str(run.settings["probe"]) for run in runs if run.settings.get("probe") is not None}
    for probe in sorted(probes):
        read_probe(Path(probe))


def _folder(folder: Path, run: StudyRun) -> Path:
    return folder / "runs" / run.folder


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """The study's folder, for one process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "study.lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process runs the study in {folder}; wait for it, or use another --out") from None
        yield


@contextmanager
def _terminable() -> Iterator[None]:
    """A request to end (SIGTERM) counts as Ctrl-C, so that workers end and tables are written."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
