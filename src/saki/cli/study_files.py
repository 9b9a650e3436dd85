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
_EVALUATIONS = "evaluation-*.json"


def finished(run: StudyRun, folder: Path) -> bool:
    """Whether a run has its result.

    Raises:
        ValueError: If the folder's run is finished or half done with other settings, or a file in it is damaged.
    """
    if (folder / RESULT).is_file():
        _check_settings(run, folder, read_run(folder / RESULT), "finished")
        return True
    if _half_done(folder):
        _check_settings(run, folder, read_run(folder / BEGUN) if (folder / BEGUN).is_file() else {}, "begun")
    return False


def begin(run: StudyRun, folder: Path) -> None:
    """Write down the settings of a run, unless it is half done with the same.

    Raises:
        ValueError: If it is half done with others: what they gave must not enter the result of these.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILURE).unlink(missing_ok=True)
    if not finished(run, folder) and not _half_done(folder):
        write_text(folder / BEGUN, json.dumps({"fingerprint": run.fingerprint, "run": run.to_json()}))


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
    name = next((key for key in mine if mine[key] != other.get(key)), "format")
    raise ValueError(
        f"{folder} was {state} with {name} = {other.get(name)!r}, the study now says {mine.get(name)!r}; use another "
        "--out, or remove that folder"
    )
