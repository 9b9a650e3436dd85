"""What a study's run leaves in its folder, as the study itself reads it."""

from __future__ import annotations

import json
from pathlib import Path

from saki.analysis.study_results import RESULT, SetScore, run_scores
from saki.config.study import StudyRun, folder_name

FAILURE = "failure.txt"


def finished(run: StudyRun, folder: Path) -> bool:
    """Whether a run has its result.

    Raises:
        ValueError: If the result is that of other settings.
    """
    path = folder / RESULT
    if not path.is_file():
        return False
    stored = json.loads(path.read_text())
    if stored["fingerprint"] == run.fingerprint:
        return True
    mine, other = run.to_json(), stored["run"]
    name = next((key for key in mine if mine[key] != other.get(key)), "its format")
    raise ValueError(
        f"{folder} was finished with {name} = {other.get(name)!r}, the study now says {mine.get(name)!r}; use another "
        "--out, or remove that folder"
    )


def scores(run: StudyRun, folder: Path) -> list[SetScore]:
    """What a finished run measured."""
    stored = json.loads((folder / RESULT).read_text())
    return run_scores(stored, folder_name(run.student), run.label, run.seed)
