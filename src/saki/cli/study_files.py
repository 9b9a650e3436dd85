"""What a study's run leaves in its folder, as the study itself reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saki.analysis.study_results import RESULT, SetScore, read_run, run_scores
from saki.config.study import StudyRun, folder_name
from saki.files import write_text

FAILURE = "failure.txt"
BEGUN = "run.json"
"""Settings of a run, written before its first step."""

CHECKPOINTS = "checkpoints"
CPU_SECONDS = "cpu_seconds.json"
"""CPU seconds of a run so far, by part."""

_EVALUATIONS = "evaluation-*.json"


def finished(run: StudyRun, folder: Path) -> bool:
    """Whether a run has its result.

    Raises:
        ValueError: If the result is that of other settings, or damaged.
    """
    if not (folder / RESULT).is_file():
        return False
    _check_settings(run, folder, read_run(folder / RESULT), "finished")
    return True


def check_half_done(run: StudyRun, folder: Path) -> None:
    """Refuse a folder that other settings have left half done: what they gave must not enter the result of these.

    Raises:
        ValueError: If so, or if what says the settings is missing or damaged.
    """
    if _half_done(folder):
        try:
            begun = read_run(folder / BEGUN) if (folder / BEGUN).is_file() else {}
        except ValueError:
            begun = {}
        _check_settings(run, folder, begun, "begun")


def begin(run: StudyRun, folder: Path) -> None:
    """Write down the settings of a run, unless it is half done with the same.

    Raises:
        ValueError: See :func:`check_half_done`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).unlink(missing_ok=True)
    check_half_done(run, folder)
    if not _half_done(folder):
        forget_evaluations(folder)
        write_text(folder / BEGUN, json.dumps({"fingerprint": run.fingerprint, "run": run.to_json()}))


def forget_evaluations(folder: Path) -> None:
    """Remove what evaluations and clock of a run have left; it starts from step 1."""
    for path in (*folder.glob(_EVALUATIONS), folder / CPU_SECONDS):
        path.unlink(missing_ok=True)


def scores(run: StudyRun, folder: Path) -> list[SetScore]:
    """What a finished run measured.

    Raises:
        ValueError: If its result is damaged.
    """
    return run_scores(folder / RESULT, folder_name(run.student), run.label, run.seed)


def _half_done(folder: Path) -> bool:
    return any((folder / CHECKPOINTS).glob("checkpoint-*")) or any(folder.glob(_EVALUATIONS))


def _check_settings(run: StudyRun, folder: Path, stored: Mapping[str, Any], state: str) -> None:
    if stored.get("fingerprint") == run.fingerprint:
        return
    mine, other = run.to_json(), stored.get("run") or {}
    name = next((key for key in mine if mine[key] != other.get(key)), None)
    if not other or name is None:
        raise ValueError(
            f"{folder} was {state} with settings that are not written down; use another --out, or remove that folder"
        )
    raise ValueError(
        f"{folder} was {state} with {name} = {other.get(name)!r}, the study now says {mine[name]!r}; use another "
        "--out, or remove that folder"
    )
