"""The seven held-out sets of the embedded lab, as benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from saki import lab
from saki.evaluation.benchmarks.base import Benchmark, grade_each


def lab_benchmarks(
    num_problems: int = 300,
    seed: int = 0,
    split: Literal["test", "development"] = "test",
    names: Sequence[str] | None = None,
) -> tuple[Benchmark, ...]:
    """The lab's sets. Choose learning rates and the like on the development split, never on the test split.

    Args:
        num_problems: Problems a set.
        seed: Seed of the draw of problems.
        split: ``"test"`` or ``"development"``; no question is in both, and none is in training.
        names: Which sets; all of ``saki.lab.TEST_SETS`` if None.

    Returns:
        One benchmark a set, in the order asked for. A development set has its own name
        (``development-sum_3``), so that its samples cannot be taken for those of the test set.

    Raises:
        ValueError: If the split or a name is unknown, or if a set has too few distinct questions.
    """
    if split not in ("test", "development"):
        raise ValueError(f"split must be 'test' or 'development', got {split!r}")
    problem_set = lab.test_set if split == "test" else lab.development_set
    benchmarks = []
    for name in lab.TEST_SETS if names is None else names:
        problems = problem_set(name, num_problems, seed)
        benchmarks.append(
            Benchmark(
                name=name if split == "test" else f"development-{name}",
                prompts=tuple(problem.prompt for problem in problems),
                answers=tuple(problem.answer for problem in problems),
                grade=grade_each(lab.grade),
                source=f"saki.lab {split} split, {num_problems} problems, seed {seed}",
            )
        )
    return tuple(benchmarks)
