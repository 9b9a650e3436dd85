"""Batches of worked traces, as token ids with the prompt and the padding masked out of the labels."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from saki.lab.problems import Working
from saki.lab.splits import training_questions
from saki.lab.tokenizer import EOS_ID

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IGNORED_LABEL = -100
"""Label of positions without a loss."""


def training_texts(
    rng: random.Random, slip_share: float, slip_rate: float, habit: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield (prompt, completion) pairs of the training split without end.

    Args:
        rng: Source of questions and slips; the iterator advances it as it goes.
        slip_share: Share of completions that carry slips, in [0, 1].
        slip_rate: Probability that a step of such a completion goes wrong, in [0, 1].
        habit: Wrong habit of every completion, a key of `saki.lab.habits.HABITS`.

    Yields:
        A prompt and its worked completion, without the end-of-sequence token.
    """
    for kind, numbers in training_questions(rng):
        slips = rng.random() < slip_share
        trace, _ = kind.work_out(numbers, Working(rng, slip_rate if slips else 0.0, habit))
        yield kind.prompt(numbers), trace


def encode_rows(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    """Encode (prompt, completion) pairs.

    Args:
        tokenizer: The pair's tokenizer; its end-of-sequence token closes every completion.
        texts: Prompts with their completions.

    Returns:
        One (ids, labels) pair a text, of equal length; labels are `IGNORED_LABEL` on the prompt.
    """
    prompts = tokenizer([prompt for prompt, _ in texts])["input_ids"]
    completions = tokenizer([completion for _, completion in texts])["input_ids"]
    return [
        ([*prompt, *completion, EOS_ID], [*([IGNORED_LABEL] * len(prompt)), *completion, EOS_ID])
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
