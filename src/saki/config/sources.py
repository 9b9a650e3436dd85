"""Names of models and prompt sets that need no download."""

from __future__ import annotations

from typing import Any

from saki import lab
from saki.data import load_prompt_dataset

LAB_STUDENT, LAB_TEACHER, LAB_PROMPTS = "lab/student", "lab/teacher", "lab"
LAB_NUM_PROMPTS = 4096


def model_path(name: str) -> str:
    """``lab/student`` and ``lab/teacher`` are the embedded pair; every other name stays as it is."""
    if name == LAB_STUDENT:
        return str(lab.student_path())
    if name == LAB_TEACHER:
        return str(lab.teacher_path())
    return name


def prompt_rows(name: str, split: str | None = None, seed: int = 0) -> Any:
    """``lab`` is the lab's training problems; every other name is a file, a folder or a hub data set.

    Returns:
        Rows with ``prompt`` and, where known, ``answer``.
    """
    if name == LAB_PROMPTS:
        problems = lab.training_problems(LAB_NUM_PROMPTS, seed)
        return [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    return load_prompt_dataset(name, split=split)
