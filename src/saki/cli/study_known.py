"""Runs of a study that were finished elsewhere: ``saki study --known``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from saki.analysis.study_folder import RESULTS
from saki.analysis.study_results import RESULT, SetScore, by_run, read_results
from saki.config import UsageError
from saki.config.study import StudyRun, run_folder

logger = logging.getLogger(__name__)

Scores = dict[str, list[SetScore]]
"""Scores by folder of a run."""


def known_scores(runs: Sequence[StudyRun], paths: str | None) -> Scores:
    """Scores of a study's runs that were finished elsewhere.

    Args:
        runs: Runs of the study; what the files hold beside them is left out.
        paths: Each a results.parquet, or a folder with one, joined by commas; where two hold a run, the first counts.
            None for none.

    Raises:
        ValueError: If a file is missing or damaged, holds no run of the study, or one with other settings or in part.
    """
    by_folder = {run.folder: run for run in runs}
    known: Scores = {}
    for name in paths.split(",") if paths is not None else []:
        if not name.strip():
            raise UsageError(f"known holds an empty name ({paths!r}); give results files joined by commas")
        path = Path(name.strip())
        try:
            path = path / RESULTS if path.is_dir() else path
        except OSError as error:  # a name that is too long
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        here = {folder: found for folder, found in _read(path).items() if folder in by_folder}
        if not here:
            raise ValueError(f"{path} holds no run of this study, by student, label and seed; leave it out of --known")
        sets = {score.benchmark for found in here.values() for score in found}
        for folder, found in here.items():
            _check(path, by_folder[folder], found, sets)
            known.setdefault(folder, found)
        logger.info("%s: %d of this study's %d runs count as finished", path, len(here), len(runs))
    return known


def check_nothing_lost(folder: Path, known: Mapping[str, object]) -> None:
    """Refuse to write results over those of runs that are nowhere else.

    Args:
        folder: Of the study.
        known: Runs whose scores are at hand, by folder of a run.

    Raises:
        ValueError: If the folder's results hold a run that has no result of its own and is not known.
    """
    path = folder / RESULTS
    try:
        there = _read(path) if path.is_file() else {}
    except ValueError:  # a damaged file is there to be written anew
        return
    lost = [run for run in there if run not in known and not (folder / "runs" / run / RESULT).is_file()]
    if lost:
        raise ValueError(
            f"{path} holds {len(lost)} runs that are nowhere else, such as {lost[0]}, and would be written over; give "
            "it as --known with the study that it is of, or use another --out"
        )


def _read(path: Path) -> Scores:
    remedy = "get a whole one from where it was written, or leave it out of --known"
    return {run_folder(*run): found for run, found in by_run(read_results(path, remedy)).items()}


def _check(path: Path, run: StudyRun, found: Sequence[SetScore], sets: Collection[str]) -> None:
    if any(not score.fingerprint for score in found):
        raise ValueError(f"{path} was written before it held the settings of runs, so they cannot be compared")
    if any(score.fingerprint != run.fingerprint for score in found):
        raise ValueError(
            f"{path} holds {run.folder} with other settings than the study's; give the changed method a label of its "
            "own, or leave the file out of --known"
        )
    expected = sorted((step, name) for step in (*run.evaluate_at, run.max_steps) for name in sets)
    whole = all(len(score.num_right) == run.num_problems and score.num_samples == run.num_samples for score in found)
    if not whole or sorted((score.step, score.benchmark) for score in found) != expected:
        raise ValueError(f"{path} holds {run.folder} in part or twice; leave it out of --known")
