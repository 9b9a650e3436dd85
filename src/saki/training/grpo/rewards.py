"""Rule-based rewards: 1 for a completion whose answer is right, else 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Grader = Callable[[Sequence[str], Sequence[str]], Sequence[bool | str | None]]
"""Grades the completions of a step, each against its answer.

A verdict is True or False, or a word as ``saki.evaluation.grading`` gives it: ``correct``, ``incorrect``, ``unparsed``
(no readable box) or ``timeout``, which None says as well.
"""


class Reward(Protocol):
    """Tells whether a completion arrives at the reference answer; it always ends soon."""

    def __call__(self, completion_text: str, gold: str, /) -> bool:
        """Grade one completion.

        Args:
            completion_text: Decoded completion, without special tokens.
            gold: The reference answer, text.

        Returns:
            True for a right answer.
        """


def one_by_one(reward: Reward) -> Grader:
    """The grader that asks a reward about each completion."""

    def grade(completions: Sequence[str], answers: Sequence[str]) -> list[bool | str | None]:
        return [bool(reward(text, gold)) for text, gold in zip(completions, answers, strict=True)]

    return grade


def batched_reward(grade: Grader) -> Callable[..., list[float | None]]:
    """The reward function that TRL calls: all completions of a step with their rows' ``answer``.

    A completion that could not be graded in time has no reward: TRL leaves it out of its group's mean and deviation,
    and it trains nothing. The shares of such completions and of those without a readable answer are logged.

    Args:
        grade: The grader.

    Returns:
        A function of ``completions`` (texts, or conversations of one assistant message) and ``answer``: 1.0, 0.0 or
        None each. Its name, ``correct``, is what TRL logs it under.
    """

    def correct(
        completions: Sequence[Any],
        answer: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float | None]:
        texts = [each if isinstance(each, str) else str(each[-1]["content"]) for each in completions]
        verdicts = grade(texts, answer)
        if len(verdicts) != len(texts):
            raise ValueError(
                f"the grader gave {len(verdicts)} verdicts for {len(texts)} completions; expected one each"
            )
        late = [verdict in (None, "timeout") for verdict in verdicts]
        if log_metric is not None:
            log_metric("grading/timeout_share", sum(late) / len(late))
            log_metric("grading/unparsed_share", verdicts.count("unparsed") / len(verdicts))
        return [None if out else float(v in (True, "correct")) for v, out in zip(verdicts, late, strict=True)]

    return correct
