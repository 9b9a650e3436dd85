"""Names of models and prompt sets that need no download."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saki import lab
from saki.data import load_prompt_dataset
from saki.types.exact import did_you_mean

if TYPE_CHECKING:
    from saki.training.grpo.rewards import Reward

LAB_MODELS = tuple(f"lab/{name}" for name in lab.MODELS)
LAB_STUDENT, LAB_TEACHER = "lab/student", "lab/teacher"
LAB_HALF_TEACHER = "lab/half-teacher"
"""The lab's teacher after part of its recipe; ``saki teacher`` builds it."""

LAB_PROMPTS, LAB_DEVELOPMENT = "lab", "lab/development"
DAPO_ON_THE_HUB = "open-r1/DAPO-Math-17k-Processed"
"""DAPO-Math-17K without its repetitions; the prompts carry no instruction (give one with ``--suffix``)."""

LAB_NUM_PROMPTS = 4096
LAB_NUM_DEVELOPMENT = 20  # per set


def check_model_name(key: str, name: str) -> None:
    """Refuse a name that cannot be a model.

    Raises:
        ValueError: If it is empty, or begins with ``lab/`` and is none of the embedded models.
    """
    if not name or not isinstance(name, str):
        raise ValueError(f"{key} is empty; expected a folder, a hub name, or one of {', '.join(LAB_MODELS)}")
    if name.startswith("lab/") and name not in LAB_MODELS and not Path(name).is_dir():
        hint = did_you_mean(name, LAB_MODELS, f"it has {', '.join(LAB_MODELS)}")
        raise ValueError(f"there is no model {name!r} in the lab; {hint}")


def check_prompts_name(key: str, name: str) -> None:
    """Refuse a name that cannot be a prompt set.

    Raises:
        ValueError: If it is empty, or begins with ``lab/`` and is none of the lab's sets.
    """
    if not name or not isinstance(name, str):
        raise ValueError(f"{key} is empty; expected a file, a folder, a hub name, {LAB_PROMPTS} or {LAB_DEVELOPMENT}")
    if name.startswith("lab/") and name != LAB_DEVELOPMENT and not Path(name).exists():
        raise ValueError(f"there is no prompt set {name!r} in the lab; it has {LAB_PROMPTS} and {LAB_DEVELOPMENT}")


def check_num_problems(key: str, number: int, split: str = "test") -> None:
    """Refuse more problems a set than the lab has.

    Raises:
        ValueError: If the set with the fewest distinct questions has not so many.
    """
    available = lab.test_set if split == "test" else lab.development_set
    try:
        available("gcd", number)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def model_path(name: str) -> str:
    """The folder of an embedded model, one of :data:`LAB_MODELS`; every other name stays as it is."""
    return str(lab.shipped_path(name.removeprefix("lab/"))) if name in LAB_MODELS else name


def prompt_rows(name: str, split: str | None = None, seed: int = 0) -> Any:
    """``lab`` is the lab's training problems, ``lab/development`` its development split; else a file or hub name.

    Returns:
        Rows with ``prompt`` and, where known, ``answer``.
    """
    if name in (LAB_PROMPTS, LAB_DEVELOPMENT):
        if split is not None:
            raise ValueError(f"{name} has no splits, got {split!r}; leave dataset_split out")
        if name == LAB_PROMPTS:
            problems = lab.training_problems(LAB_NUM_PROMPTS, seed)
        else:
            problems = [p for kind in lab.TEST_SETS for p in lab.development_set(kind, LAB_NUM_DEVELOPMENT)]
        return [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    return load_prompt_dataset(name, split=split)


def first_rows(rows: Any, limit: int) -> Any:
    """The first rows of a prompt set: a ``datasets.Dataset`` or a list."""
    return rows.select(range(min(limit, len(rows)))) if hasattr(rows, "select") else rows[:limit]


def grader(name: str | None) -> Callable[[str, str], bool] | None:
    """How completions of a prompt set are graded, or None where saki does not know."""
    return lab.grade if name in (LAB_PROMPTS, LAB_DEVELOPMENT) else None


def named_reward(name: str) -> Reward:
    """A user's own grader of one completion.

    Args:
        name: ``package.module:function``.

    Raises:
        ValueError: If there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"reward {name!r} cannot be imported ({error}); give package.module:function(completion, answer)"
        ) from error
    if not callable(found):
        raise ValueError(f"reward {name!r} is a {type(found).__name__}, expected a function(completion, answer)")
    reward: Reward = found
    return reward
