"""The rollout files of a run: which there are, and which belong to one step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from saki.rollout import RolloutFileError

NUM_FILES = 8
"""Most steps whose rollouts a report reads, evenly spaced over the run."""

_OF_A_RANK = re.compile(r"(.*)-rank(\d+)")

T = TypeVar("T")


def rollout_files(path: Path) -> list[Path]:
    """The rollout files that a path stands for: itself, or those of a run folder, each step's by rank.

    Raises:
        RolloutFileError: If there are none.
    """
    if not path.is_dir():
        return [path]
    for folder in (path / "rollouts", path):
        if found := list(folder.glob("*.parquet")):
            return sorted(found, key=lambda each: (_step_name(each), _rank(each)))
    raise RolloutFileError(
        f"{path} holds no rollouts; expected parquet files in it or in {path / 'rollouts'}, as saki train and "
        "saki rollout --out write them"
    )


def by_step(files: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Files that belong together, in their order: ``step-000004-rank0`` and ``-rank1`` are one step's."""
    steps: dict[tuple[Path, str], list[Path]] = {}
    for path in files:
        steps.setdefault((path.parent, _step_name(path)), []).append(path)
    return [tuple(each) for each in steps.values()]


def spaced(values: Sequence[T], count: int = NUM_FILES) -> list[T]:
    """At most ``count`` values evenly spaced over a sequence, the first and the last among them."""
    if len(values) <= count:
        return list(values)
    return [values[index] for index in np.linspace(0, len(values) - 1, count).round().astype(int)]


def _step_name(path: Path) -> str:
    """The name without its rank."""
    found = _OF_A_RANK.fullmatch(path.stem)
    return found[1] if found else path.stem


def _rank(path: Path) -> int:
    found = _OF_A_RANK.fullmatch(path.stem)
    return int(found[2]) if found else 0
