"""Key-value slabs: one pair of tensors a layer, slot = row * slots + position, roll-back without moving anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache


class SlabCache(Cache):
    """Keys and values of B rows with room for ``slots`` positions each.

    A row's entry for position i lives in slot i, so a query at position i may attend exactly the slots up to i.
    Rolling a row back means giving its next forward a smaller start: entries above are masked, and overwritten
    when their position comes again.

    Args:
        num_rows: B.
        num_slots: Positions per row.
        version: Weight version that fills the slabs; a decoder refuses a cache of another version.
        keys: Slabs [B * slots, H, D] by layer, to be written in place; by default the first forward
            makes them.
        values: The same for values.

    Attributes:
        index: [B * Q] int64, slots that the announced forward writes.
        visible: Slots that its mask spans.
    """

    def __init__(
        self,
        num_rows: int,
        num_slots: int,
        version: int,
        keys: list[Tensor] | None = None,
        values: list[Tensor] | None = None,
    ) -> None:
        self.layers = []
        self.num_rows, self.num_slots, self.version = num_rows, num_slots, version
        self.keys: list[Tensor] = [] if keys is None else keys
        self.values: list[Tensor] = [] if values is None else values
        self.index = torch.empty(0, dtype=torch.long)
        self.visible = 0

    def begin(self, positions: Tensor, visible: int) -> None:
        """Announce the next forward: [B, Q] positions that it writes, and how many slots its mask spans."""
        rows = torch.arange(self.num_rows, device=positions.device).unsqueeze(1)
        self.announce((rows * self.num_slots + positions).flatten(), visible)

    def announce(self, index: Tensor, visible: int) -> None:
        """Announce the next forward by the slots [B * Q] that it writes, and how many slots its mask spans."""
        self.index, self.visible = index, visible

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's new entries [B, H, Q, D]; return all visible ones as [B, H, S, D] views."""
        return (
            self._write(self.keys, layer_idx, key_states),
            self._write(self.values, layer_idx, value_states),
        )

    def _write(self, slabs: list[Tensor], layer: int, states: Tensor) -> Tensor:
        _, heads, _, dim = states.shape
        if layer == len(slabs):
            slabs.append(states.new_zeros(self.num_rows * self.num_slots, heads, dim))
        slab = slabs[layer]
        slab.index_copy_(0, self.index, states.transpose(1, 2).reshape(-1, heads, dim))
        return self._rows_of(slab)[:, : self.visible].transpose(1, 2)

    def _rows_of(self, slab: Tensor) -> Tensor:
        return slab.view(self.num_rows, self.num_slots, *slab.shape[1:])

    def copy_rows(self, source: SlabCache, source_rows: Tensor, rows: Tensor, length: int) -> None:
        """Take over the first ``length`` entries of some rows of another cache.

        Args:
            source: Filled by the same weights; it may have fewer slots.
            source_rows: [n] int64, rows of ``source``; one may come several times.
            rows: [n] int64, distinct rows of this cache.
            length: Entries to copy; those above a row's own length are never seen.
        """
        for own, other in ((self.keys, source.keys), (self.values, source.values)):
            for layer, slab in enumerate(other):
                if layer == len(own):
                    own.append(slab.new_zeros(self.num_rows * self.num_slots, *slab.shape[1:]))
                taken = source._rows_of(slab)[source_rows.to(slab.device), :length]
                self._rows_of(own[layer])[rows.to(slab.device), :length] = taken

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row but the given ones (in the given order)."""
        for slabs in (self.keys, self.values):
            for layer, slab in enumerate(slabs):
                slabs[layer] = self._rows_of(slab)[rows.to(slab.device)].flatten(0, 1)
        self.num_rows = int(rows.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes that the slabs hold."""
        return sum(slab.numel() * slab.element_size() for slabs in (self.keys, self.values) for slab in slabs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows differ in length; models get explicit positions and never need this."""
        return 0
