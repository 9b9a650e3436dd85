"""``saki study``: methods x seeds x students, resumable, with tables that have intervals."""

from __future__ import annotations

import fcntl
import logging
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from saki.analysis.study_results import SetScore, gather, write_results
from saki.analysis.study_tables import Arms, steps_tables, study_tables, write_tables
from saki.cli.console import git_commit, print_json
from saki.cli.study_board import Board
from saki.cli.study_files import finished, scores
from saki.cli.study_pool import WorkerPool
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments, StudyArguments
from saki.config.study import STUDENT, TEACHER, Study, StudyRun, chosen_runs, folder_name, read_study

logger = logging.getLogger(__name__)

SUMMARY = "Run a study file: methods x seeds x students, several at once. Started again it goes on where it stopped."
EXAMPLE = "saki study examples/study_smoke.yaml --jobs 2 --out runs/study"
ALL_TABLES = "tables.md"


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
    chosen = chosen_runs(study, args.only, args.only_seeds, args.only_students)
    folder = Path(common.out or f"runs/{path.stem}")
    begin = time.perf_counter()
    with _claimed(folder):
        (folder / "study.yaml").write_text(path.read_text())
        done = [each for each in study.runs if finished(each, _folder(folder, each))]
        waiting = [] if args.tables_only else [each for each in chosen if each not in done]
        _check_probes(waiting)
        pool = WorkerPool(waiting, folder, args.jobs)
        board = Board(chosen, [each for each in done if each in chosen], args.jobs)
        try:
            with _terminable():
                pool.carry_out(board.show)
        finally:
            board.show(pool.state, last=True)
            complete = [*done, *(each for each, _ in pool.state.finished)]
            tables = write_tables_of(study, [each for each in study.runs if each in complete], folder)
    failed = pool.state.failed
    if tables:
        print((folder / ALL_TABLES).read_text())
        print(f"results: {folder / 'results.parquet'}   tables: {folder / ALL_TABLES}")
    if common.json:
        print_json(
            {
                "runs": len(study.runs),
                "chosen": len(chosen),
                "finished": len(complete),
                "finished_now": len(pool.state.finished),
                "failed": {each.folder: reason for each, reason in failed},
                "results": str(folder / "results.parquet"),
                "tables": [str(table) for table in tables],
                "seconds": round(time.perf_counter() - begin, 1),
                "commit": git_commit(),
            }
        )
    if failed:
        print(f"saki: {len(failed)} of {len(study.runs)} runs failed; start the study again to retry", file=sys.stderr)
    return 1 if failed else 0


def write_tables_of(study: Study, complete: Sequence[StudyRun], folder: Path) -> list[Path]:
    """Write ``results.parquet`` and every table that the finished runs allow.

    Returns:
        The Markdown files of the last step's tables.
    """
    found = [score for each in complete for score in scores(each, _folder(folder, each))]
    if not found:
        return []
    write_results(folder / "results.parquet", found)
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
        target = folder / "tables" if last else folder / "tables" / f"step-{step:06d}"
        paths = write_tables(target, tables)
        if last:
            written = paths
            (folder / ALL_TABLES).write_text("\n".join(table.markdown() for table in tables))
    return written


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


def _check_probes(runs: Sequence[StudyRun]) -> None:
    """Read every probe that runs measure, so that a missing or damaged one is told before the first of them."""
    probes = {str(run.settings["probe"]) for run in runs if run.settings.get("probe") is not None}
    if probes:
        from saki.probe import read_probe  # brings in models, which a study without probes leaves to its workers

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
