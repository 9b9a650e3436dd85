"""Rule-based rewards: 1 for a completion whose answer is right, else 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Reward(Protocol):
    """Tells whether a completion arrives at the reference answer."""

    def __call__(self, completion_text: str, gold: str, /) -> bool:
        """Grade one completion.

        Args:
            completion_text: Decoded completion, without special tokens.
            gold: The reference answer, text.

        Returns:
            True for a right answer.
        """


def batched_reward(reward: Reward) -> Callable[..., list[float]]:
    """The reward function that TRL calls: all completions of a step with their rows' ``answer``.

    Args:
        reward: Grades one completion.

    Returns:
        A function of ``completions`` (texts, or conversations of one assistant message) and ``answer``, 0.0 or 1.0
        each. Its name, ``correct``, is what TRL logs it under.
    """

    def correct(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
        texts = [each if isinstance(each, str) else str(each[-1]["content"]) for each in completions]
        return [float(bool(reward(text, gold))) for text, gold in zip(texts, answer, strict=True)]

    return correct
