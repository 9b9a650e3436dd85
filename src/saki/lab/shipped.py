"""Where the weights that come with the package lie."""

from __future__ import annotations

from pathlib import Path

_WEIGHTS = Path(__file__).parent / "weights"


def teacher_path() -> Path:
    """Return the folder of the shipped teacher, a plain Hugging Face model folder in bfloat16."""
    return _WEIGHTS / "teacher"


def student_path() -> Path:
    """Return the folder of the shipped student, a plain Hugging Face model folder in bfloat16."""
    return _WEIGHTS / "student"
