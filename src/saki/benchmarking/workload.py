"""What every arm of a benchmark has to produce: prompts, and the length of each completion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from saki.benchmarking.pairs import BenchPair
from saki.types import Prompt

RowName = tuple[int, int]
"""(prompt key, sample index)."""


@dataclass(frozen=True)
class Workload:
    """Completions of forced lengths. Stop ids are ignored, so that all arms do the same work.

    Attributes:
        prompts: The prompts.
        samples_per_prompt: Completions of each.
        lengths: Forced length of each row, prompt-major (tokens).
        batch_size: Rows that run at once.
        radius: Trust-region radius, nats.
        seed: Seed of the requests.
    """

    prompts: tuple[Prompt, ...]
    samples_per_prompt: int
    lengths: tuple[int, ...]
    batch_size: int
    radius: float
    seed: int

    @property
    def num_tokens(self) -> int:
        """Tokens that an arm must produce."""
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        """Longest forced length."""
        return max(self.lengths)

    @property
    def uniform(self) -> bool:
        """Whether all rows have one length."""
        return len(set(self.lengths)) == 1

    @property
    def forced(self) -> Mapping[RowName, int]:
        """Forced length by row."""
        names = [(prompt.key, sample) for prompt in self.prompts for sample in range(self.samples_per_prompt)]
        return dict(zip(names, self.lengths, strict=True))

    def row_prompts(self) -> list[tuple[int, ...]]:
        """Prompt ids of each row."""
        return [prompt.token_ids for prompt in self.prompts for _ in range(self.samples_per_prompt)]

    def facts(self) -> dict[str, object]:
        """What is written beside results."""
        return {
            "requests": len(self.lengths),
            "batch_size": self.batch_size,
            "samples_per_prompt": self.samples_per_prompt,
            "prompt_length": len(self.prompts[0].token_ids),
            "tokens": self.num_tokens,
            "lengths": {"shortest": min(self.lengths), "longest": self.longest, "uniform": self.uniform},
            "radius": self.radius,
            "seed": self.seed,
        }


def make_workload(
    pair: BenchPair,
    *,
    requests: int,
    batch_size: int,
    samples_per_prompt: int,
    prompt_length: int,
    lengths: tuple[int, ...],
    radius: float,
    seed: int,
) -> Workload:
    """A workload of a pair.

    Raises:
        ValueError: If the requests do not divide into samples of prompts.
    """
    if requests % samples_per_prompt:
        raise ValueError(
            f"requests must be a multiple of samples_per_prompt, got {requests} and {samples_per_prompt}; "
            "change one of them"
        )
    ids = pair.prompt_ids(requests // samples_per_prompt, prompt_length, seed)
    prompts = tuple(Prompt(key=key, token_ids=row) for key, row in enumerate(ids))
    return Workload(prompts, samples_per_prompt, lengths, batch_size, radius, seed)


def lognormal_lengths(count: int, cap: int, seed: int, *, median: float = 64.0, sigma: float = 0.8) -> tuple[int, ...]:
    """Lengths drawn from a lognormal law, at least 1 and at most the cap (tokens)."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(count, generator=generator, dtype=torch.float64)
    return tuple(min(cap, max(1, round(length))) for length in (math.log(median) + sigma * draws).exp().tolist())
