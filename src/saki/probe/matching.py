"""Which positions of a rollout a probe freezes: genuine corrections, each with an accepted position matched to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from saki.functional import RowKeys, Stream, keyed_uniforms
from saki.types import RolloutBatch


@dataclass(frozen=True)
class Place:
    """A position of a rollout.

    Attributes:
        row: Row of the batch.
        position: Response position.
    """

    row: int
    position: int


@dataclass(frozen=True)
class Matching:
    """Chosen positions.

    Attributes:
        corrections: Genuine corrections, in the order of prompt, sample and position.
        accepted: The accepted position matched to each.
        num_candidates: Corrections with a prefix of their own, of which the chosen ones are a part.
        num_same_prompt: Matches within the prompt of their correction.
        mean_distance: Mean distance of a pair's response positions, tokens.
    """

    corrections: tuple[Place, ...]
    accepted: tuple[Place, ...]
    num_candidates: int
    num_same_prompt: int
    mean_distance: float


def match_positions(batch: RolloutBatch, num_pairs: int) -> Matching:
    """Choose corrections at random and match an accepted position to each.

    A correction is chosen with equal probability among all that have a prefix of their own: keyed random numbers
    order them, and the first ``num_pairs`` are taken. Each gets the accepted position of the same prompt, in any of its
    completions, whose response position is nearest; ties go to the earlier position, then to the lower sample. Where
    a prompt has none left, the nearest one of any prompt is taken. No prefix, prompt and tokens, stands twice.

    Args:
        batch: The rollout of the initial student.
        num_pairs: Corrections wanted, and as many accepted positions.

    Raises:
        ValueError: If the rollout has too few corrections, or no accepted position is left for one.
    """
    prefixes = _Prefixes(batch)
    rows, positions = torch.nonzero(batch.correction_mask & batch.response_mask, as_tuple=True)
    keys = RowKeys(batch.seed, batch.prompt_keys[rows], batch.sample_indices[rows])
    order = torch.argsort(keyed_uniforms(keys, positions, Stream.PLACEMENT)[:, 0], stable=True)
    taken: set[int] = set()
    distinct: list[Place] = []
    for row, position in zip(rows[order].tolist(), positions[order].tolist(), strict=True):
        if prefixes.take(row, position, taken):
            distinct.append(Place(row, position))
    if len(distinct) < num_pairs:
        raise ValueError(
            f"{len(batch)} completions hold {len(distinct)} corrections with a prefix of their own, the probe needs "
            f"{num_pairs}; roll out more (limit, num_generations) or ask for fewer (num_pairs)"
        )
    samples, prompts = batch.sample_indices.tolist(), batch.prompt_keys.tolist()
    chosen = sorted(distinct[:num_pairs], key=lambda at: (prompts[at.row], samples[at.row], at.position))
    taken = {prefixes.of(at.row, at.position) for at in chosen}
    by_prompt: dict[int, list[int]] = {}
    for row in sorted(range(len(batch)), key=lambda row: (prompts[row], samples[row])):
        by_prompt.setdefault(prompts[row], []).append(row)
    everywhere = [row for rows in by_prompt.values() for row in rows]
    accepted = (batch.response_mask & ~batch.correction_mask).tolist()
    matches: list[Place] = []
    same_prompt = 0
    for correction in chosen:
        own = by_prompt[prompts[correction.row]]
        match = _nearest(correction.position, own, accepted, prefixes, taken)
        same_prompt += match is not None
        match = match or _nearest(correction.position, everywhere, accepted, prefixes, taken)
        if match is None:
            raise ValueError(
                f"{len(batch)} completions have no accepted position left to match the {len(matches) + 1}th of "
                f"{num_pairs} corrections; roll out more (limit, num_generations) or ask for fewer (num_pairs)"
            )
        matches.append(match)
    distances = [abs(a.position - b.position) for a, b in zip(chosen, matches, strict=True)]
    return Matching(tuple(chosen), tuple(matches), len(distinct), same_prompt, sum(distances) / num_pairs)


class _Prefixes:
    """Names prefixes by 64-bit hashes: equal exactly where prompt and earlier tokens are."""

    def __init__(self, batch: RolloutBatch) -> None:
        self._batch = batch
        self._known: dict[int, list[int]] = {}

    def of(self, row: int, position: int) -> int:
        """The name of the prefix that stands before a position."""
        if row not in self._known:
            # hash() of tuples of ints is a fixed function: no salt, unlike that of text.
            names = [hash(tuple(self._batch.prompt_token_ids(row)))]
            for token in self._batch.completion_token_ids(row):
                names.append(hash((names[-1], token)))
            self._known[row] = names
        return self._known[row][position]

    def take(self, row: int, position: int, taken: set[int]) -> bool:
        """Add a prefix to the taken ones; False where it is there already."""
        name = self.of(row, position)
        if name in taken:
            return False
        taken.add(name)
        return True


def _nearest(
    target: int, rows: Sequence[int], accepted: list[list[bool]], prefixes: _Prefixes, taken: set[int]
) -> Place | None:
    """The accepted position nearest to a response position in some rows, now taken; None where none is left."""
    width = len(accepted[0])
    for distance in range(width):
        for position in sorted({target - distance, target + distance}):
            if 0 <= position < width:
                for row in rows:
                    if accepted[row][position] and prefixes.take(row, position, taken):
                        return Place(row, position)
    return None
