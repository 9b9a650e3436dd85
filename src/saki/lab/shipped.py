"""Where the weights that come with the package lie."""

from __future__ import annotations

from pathlib import Path

from saki.lab.recipes import RECIPES, STUDENT, TEACHER

_WEIGHTS = Path(__file__).parent / "weights"

MODELS: tuple[str, ...] = tuple(recipe.name for recipe in RECIPES)
"""Names of the shipped models."""


def shipped_path(name: str) -> Path:
    """Return the folder of a shipped model, a plain Hugging Face model folder in bfloat16.

    Args:
        name: One of `MODELS`.

    Raises:
        ValueError: If there is no such model.
    """
    if name not in MODELS:
        raise ValueError(f"there is no shipped model {name!r}; expected one of {', '.join(MODELS)}")
    return _WEIGHTS / name


def teacher_path() -> Path:
    """Return the folder of the shipped teacher."""
    return shipped_path(TEACHER.name)


def student_path() -> Path:
    """Return the folder of the shipped student, weak by slips."""
    return shipped_path(STUDENT.name)
