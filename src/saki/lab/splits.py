"""Train, development and test questions, kept apart by a stable hash of the question."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Literal

from saki.lab.problems import KINDS, Kind, Problem

Split = Literal["train", "development", "test"]

TEST_SETS: tuple[str, ...] = ("sum_3", "sum_6", "products_3", "parentheses", "linear", "gcd", "remainder")
"""The seven held-out sets, which play the part of the seven benchmarks."""

_HARD_KIND_WEIGHT = 2  # a training question comes from a given test kind this much more often than from an easier one
_TRIES_PER_PROBLEM = 50
_MIN_TRIES = 10_000
_MOST_IN_VAIN = 20_000


def split_of(prompt: str) -> Split:
    """Return the split that a question belongs to: 70% train, 10% development, 20% test.

    Args:
        prompt: The prompt text of a problem.

    Returns:
        The split; it depends on the text alone, on every machine and in every run.
    """
    bucket = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "big") % 20
    if bucket < 4:
        return "test"
    return "development" if bucket < 6 else "train"


def test_set(name: str, num_problems: int = 300, seed: int = 0) -> list[Problem]:
    """Return distinct test questions of one kind.

    Args:
        name: One of `TEST_SETS`.
        num_problems: Number of questions.
        seed: Seed of the draw; every seed draws from the same test split.

    Returns:
        ``num_problems`` problems with distinct prompts, none of which any training or development call returns.

    Raises:
        ValueError: If the name is unknown, or if the kind has too few distinct questions.
    """
    return _distinct_problems(name, "test", num_problems, seed)


def development_set(name: str, num_problems: int = 100, seed: int = 0) -> list[Problem]:
    """Return distinct development questions of one kind, for choosing learning rates and the like.

    Args:
        name: One of `TEST_SETS`.
        num_problems: Number of questions.
        seed: Seed of the draw; every seed draws from the same development split.

    Returns:
        ``num_problems`` problems with distinct prompts, none of which any training or test call returns.

    Raises:
        ValueError: If the name is unknown, or if the kind has too few distinct questions.
    """
    return _distinct_problems(name, "development", num_problems, seed)


def training_problems(num_problems: int, seed: int) -> list[Problem]:
    """Return training questions: a mixture of the seven test kinds and six easier kinds.

    Args:
        num_problems: Number of questions.
        seed: Seed of the draw.

    Returns:
        ``num_problems`` problems of the training split; a question may come more than once.

    Raises:
        ValueError: If ``num_problems`` is negative.
    """
    if num_problems < 0:
        raise ValueError(f"num_problems is {num_problems}; expected 0 or more")
    questions = training_questions(random.Random(f"saki.lab training problems {seed}"))
    return [kind.problem(numbers) for (kind, numbers), _ in zip(questions, range(num_problems), strict=False)]


def training_questions(rng: random.Random) -> Iterator[tuple[Kind, tuple[int, ...]]]:
    """Yield training questions without end, each as its kind and its numbers.

    Args:
        rng: Source of the draw; the iterator advances it as it goes.

    Yields:
        A kind and the numbers of a question in the training split.
    """
    kinds = list(KINDS.values())
    weights = [_HARD_KIND_WEIGHT if kind.name in TEST_SETS else 1 for kind in kinds]
    while True:
        kind = rng.choices(kinds, weights)[0]
        numbers = kind.draw(rng)
        if split_of(kind.prompt(numbers)) == "train":
            yield kind, numbers


def _distinct_problems(name: str, split: Split, num_problems: int, seed: int) -> list[Problem]:
    if name not in TEST_SETS:
        raise ValueError(f"unknown test set {name!r}; expected one of {', '.join(TEST_SETS)}")
    if num_problems < 0:
        raise ValueError(f"num_problems is {num_problems}; expected 0 or more")
    kind = KINDS[name]
    rng = random.Random(f"saki.lab {split} {name} {seed}")
    found: dict[tuple[int, ...], Problem] = {}
    # A kind such as gcd has few distinct questions, so the hunt for new ones has a bound.
    in_vain = 0
    for _ in range(_MIN_TRIES + _TRIES_PER_PROBLEM * num_problems):
        if len(found) == num_problems or in_vain > _MOST_IN_VAIN:
            break
        numbers = kind.draw(rng)
        in_vain += 1
        if numbers not in found and split_of(kind.prompt(numbers)) == split:
            found[numbers] = kind.problem(numbers)
            in_vain = 0
    if len(found) < num_problems:
        raise ValueError(
            f"the {split} split of {name!r} gave {len(found)} distinct questions, expected {num_problems}; "
            "ask for fewer problems"
        )
    return list(found.values())
