"""What a benchmark is: problems, right answers, a grader and where they come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from saki.evaluation.grading import Verdict

GradeFunction = Callable[[Sequence[str], Sequence[str]], Sequence[Verdict | bool | None]]
"""Grades many completions at once: (completions, answers) to verdicts, where True is ``"correct"``, False
``"incorrect"`` and None ``"timeout"``.

It takes many samples in one call, so that a slow grader can spread them over child processes with a deadline each.
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Benchmark:
    """A set of problems with a grader. One small file a benchmark (or a family of them) makes these.

    Attributes:
        name: Letters, digits, dots, dashes and underscores; names the file of samples and, with a problem's
            index, its random numbers.
        prompts: P prompts as text.
        answers: P right answers, in the form that ``grade`` understands.
        grade: Grader of many completions at once.
        source: Where the problems come from, with the pinned revision.
        chat: Whether a prompt is a user's message, to go through the chat template; else its text is tokenised as
            it stands.
        also: Further graders by name, whose figures are reported beside those of ``grade``.
    """

    name: str
    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    grade: GradeFunction
    source: str
    chat: bool = False
    also: tuple[tuple[str, GradeFunction], ...] = ()

    def __post_init__(self) -> None:
        check_benchmark_name(self.name)
        if not self.prompts or len(self.prompts) != len(self.answers):
            raise ValueError(
                f"benchmark {self.name} has {len(self.prompts)} prompts and {len(self.answers)} answers; "
                "expected as many answers as prompts, and at least one"
            )

    def __len__(self) -> int:
        return len(self.prompts)


def check_benchmark_name(name: str) -> None:
    """Refuse a name that cannot name a file.

    Raises:
        ValueError: If it holds anything but letters, digits, dots, dashes and underscores.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"benchmark name {name!r} must be made of letters, digits, '.', '-' and '_' and begin with "
            "a letter or digit, since it names a file"
        )


def grade_each(grade: Callable[[str, str], bool]) -> GradeFunction:
    """Make a :data:`GradeFunction` of a quick grader that takes one completion and its answer.

    Only for graders that always end soon: no deadline stands behind it.
    """

    def grade_all(completions: Sequence[str], answers: Sequence[str]) -> list[Verdict | bool | None]:
        return [grade(completion, answer) for completion, answer in zip(completions, answers, strict=True)]

    return grade_all
