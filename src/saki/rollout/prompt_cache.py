"""Prompts in the caches: each is run through the models once, and copied to every sample that needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saki.rollout.decoder import Decoder, DecoderCache
from saki.rollout.protocol import EngineStats
from saki.rollout.rows import Row, padded_prompts

_Identity = tuple[int, tuple[int, ...]]

PROMPTS_TOGETHER = 8
"""Prompts that are run together at least, if so many wait: one alone leaves the weights' transfer unused."""


@dataclass
class _Stored:
    """Where a prompt lies, and how many of its samples still wait for it."""

    caches: tuple[DecoderCache, ...]
    place: int
    width: int
    waiting: int


class PromptCache:
    """Prefills prompts in chunks of positions, keeps them until their last sample is admitted, and copies them.

    The caches of a row with a prompt of n tokens hold n - 1 entries; the last token is fed with the first step.

    Args:
        decoders: Student, and teacher where it verifies.
        rows: All rows of the unit, prompt-major.
        stats: Counters to add to.
        chunk: Prompt positions per prefill forward.
    """

    def __init__(self, decoders: Sequence[Decoder], rows: Sequence[Row], stats: EngineStats, chunk: int) -> None:
        self._decoders, self._stats, self._chunk = tuple(decoders), stats, chunk
        self._order: list[Row] = []  # one row for each prompt that is not stored yet, in order of need
        self._samples: dict[_Identity, int] = {}
        for row in rows:
            if _identity(row) not in self._samples:
                self._order.append(row)
            self._samples[_identity(row)] = self._samples.get(_identity(row), 0) + 1
        self._next = 0
        self._stored: dict[_Identity, _Stored] = {}

    def admit(self, rows: Sequence[Row], slots: Tensor, caches: Sequence[DecoderCache]) -> None:
        """Fill the slots of newly admitted rows, which come in the order of the unit's rows.

        Args:
            rows: n rows.
            slots: [n] int64, their rows in ``caches``.
            caches: One cache per decoder.
        """
        self._prefill_until({_identity(row) for row in rows})
        groups: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(id(self._stored[_identity(row)].caches), []).append(index)
        for members in groups.values():
            stored = [self._stored[_identity(rows[index])] for index in members]
            if stored[0].width:
                places = torch.tensor([entry.place for entry in stored], device=slots.device)
                chosen = slots[torch.tensor(members, device=slots.device)]
                for target, source in zip(caches, stored[0].caches, strict=True):
                    target.copy_rows(source, places, chosen, stored[0].width)
        for row in rows:
            entry = self._stored[_identity(row)]
            entry.waiting -= 1
            if entry.waiting == 0:
                del self._stored[_identity(row)]

    def _prefill_until(self, wanted: set[_Identity]) -> None:
        missing = wanted - self._stored.keys()
        while missing:
            ahead = max(len(missing), PROMPTS_TOGETHER)
            batch = self._order[self._next : self._next + ahead]
            self._next += len(batch)
            self._prefill(batch)
            missing -= {_identity(row) for row in batch}

    def _prefill(self, batch: Sequence[Row]) -> None:
        ids, _ = padded_prompts(batch, self._decoders[0].device)
        ids = ids[:, :-1]  # right padding lies above what its row will ever see
        width = ids.shape[1]
        caches = tuple(decoder.new_cache(len(batch), max(width, 1)) for decoder in self._decoders)
        for index, (decoder, cache) in enumerate(zip(self._decoders, caches, strict=True)):
            for begin in range(0, width, self._chunk):
                piece = ids[:, begin : begin + self._chunk]
                starts = torch.full((len(batch),), begin, dtype=torch.long, device=decoder.device)
                decoder.forward(piece.to(decoder.device), starts, cache, begin + piece.shape[1], 1)
                if index == 0:
                    self._stats.student_forwards += 1
                else:
                    self._stats.teacher_q_forwards += 1
                self._stats.prefill_positions += piece.numel()
        for place, row in enumerate(batch):
            self._stored[_identity(row)] = _Stored(caches, place, width, self._samples[_identity(row)])


def _identity(row: Row) -> _Identity:
    return row.prompt.key, row.prompt.token_ids
