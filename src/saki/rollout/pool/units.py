"""Fixed work units: a request cut into groups of rows before anything is dispatched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from saki.rollout.rows import Row, expand_rows
from saki.types import Prompt, RolloutBatch, RolloutRequest


@dataclass(frozen=True)
class Unit:
    """Rows that one replica rolls out together.

    Attributes:
        prompts: Prompts with the samples to draw of each.
        places: Where each of its rows lies in the request, prompt-major.
    """

    prompts: tuple[Prompt, ...]
    places: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.places)


def cut_units(prompts: Sequence[Prompt], request: RolloutRequest, unit_rows: int) -> list[Unit]:
    """Cut a request into units of at most ``unit_rows`` rows.

    A row's numbers may depend in their last bits on the rows that share its batch, so a unit is a function of which
    rows are asked for and of ``unit_rows`` alone: rows are taken in the order of prompt key, prompt and sample,
    whatever order they came in. Samples of one prompt stay together where they fit; a prompt with more samples than
    fit is cut.

    Args:
        prompts: Prompts of the request.
        request: Says how many samples a prompt has that names none.
        unit_rows: Most rows of a unit.

    Returns:
        The units. Every row of the request is in exactly one.
    """
    rows = expand_rows(prompts, request.num_generations)
    order = sorted(range(len(rows)), key=lambda place: _sort_key(rows[place]))
    units: list[Unit] = []
    current: list[int] = []
    for _, group in groupby(order, key=lambda place: _sort_key(rows[place])[:2]):
        places = list(group)
        if current and len(current) + len(places) > unit_rows:
            units.append(_unit(rows, current))
            current = []
        while len(places) > unit_rows:
            units.append(_unit(rows, places[:unit_rows]))
            places = places[unit_rows:]
        current += places
    if current:
        units.append(_unit(rows, current))
    return units


def join_units(units: Sequence[Unit], batches: Sequence[RolloutBatch]) -> RolloutBatch:
    """The batch of a request from those of its units, rows in the request's order."""
    joined = RolloutBatch.concatenate(batches)
    source = [place for unit in units for place in unit.places]
    where = [0] * len(source)
    for index, place in enumerate(source):
        where[place] = index
    return joined.select(where)


def _sort_key(row: Row) -> tuple[int, tuple[int, ...], int]:
    return row.prompt.key, row.prompt.token_ids, row.sample_index


def _unit(rows: Sequence[Row], places: Sequence[int]) -> Unit:
    prompts = [
        replace(rows[group[0]].prompt, sample_indices=tuple(rows[place].sample_index for place in group))
        for group in _prompt_groups(rows, places)
    ]
    return Unit(tuple(prompts), tuple(places))


def _prompt_groups(rows: Sequence[Row], places: Sequence[int]) -> list[list[int]]:
    return [list(group) for _, group in groupby(places, key=lambda place: _sort_key(rows[place])[:2])]


class LengthForecast:
    """Expects of a prompt the lengths that its completions had before, and else the average of all.

    It decides about the order of work alone, never about a result.
    """

    def __init__(self) -> None:
        self._by_prompt: dict[int, float] = {}
        self._sum, self._count = 0.0, 0

    def observe(self, batch: RolloutBatch) -> None:
        """Remember the lengths of a batch."""
        lengths = batch.lengths.tolist()
        self._sum += sum(lengths)
        self._count += len(lengths)
        seen: dict[int, list[int]] = {}
        for key, length in zip(batch.prompt_keys.tolist(), lengths, strict=True):
            seen.setdefault(key, []).append(length)
        self._by_prompt.update({key: sum(values) / len(values) for key, values in seen.items()})

    def expected_tokens(self, unit: Unit, request: RolloutRequest) -> float:
        """Tokens that a unit is expected to take: its prompts once, and its completions."""
        cap = request.max_completion_length
        average = self._sum / self._count if self._count else cap
        return sum(
            len(prompt.token_ids)
            + len(prompt.sample_indices or ()) * min(self._by_prompt.get(prompt.key, average), cap)
            for prompt in unit.prompts
        )

    def longest_first(self, units: Sequence[Unit], request: RolloutRequest) -> list[int]:
        """Indices of the units, those expected to take longest first; equal ones keep their order."""
        return sorted(range(len(units)), key=lambda index: -self.expected_tokens(units[index], request))
