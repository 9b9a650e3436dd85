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
    """

    def __init__(self, num_rows: int, num_slots: int, version: int) -> None:
        self.layers = []
        self.num_rows, self.num_slots, self.version = num_rows, num_slots, version
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._index = torch.empty(0, dtype=torch.long)
        self._visible = 0

    def begin(self, positions: Tensor, visible: int) -> None:
        """Announce the next forward: [B, Q] positions that it writes, and how many slots its mask spans."""
        rows = torch.arange(self.num_rows, device=positions.device).unsqueeze(1)
        self._index = (rows * self.num_slots + positions).flatten()
        self._visible = visible

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one layer's new entries [B, H, Q, D]; return all visible ones as [B, H, S, D] views."""
        return (
            self._write(self._keys, layer_idx, key_states),
            self._write(self._values, layer_idx, value_states),
        )

    def _write(self, slabs: dict[int, Tensor], layer: int, states: Tensor) -> Tensor:
        _, heads, _, dim = states.shape
        slab = slabs.get(layer)
        if slab is None:
            slab = states.new_zeros(self.num_rows * self.num_slots, heads, dim)
            slabs[layer] = slab
        slab.index_copy_(0, self._index, states.transpose(1, 2).reshape(-1, heads, dim))
        return self._rows_of(slab)[:, : self._visible].transpose(1, 2)

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
        for own, other in ((self._keys, source._keys), (self._values, source._values)):
            for layer, slab in other.items():
                if layer not in own:
                    own[layer] = slab.new_zeros(self.num_rows * self.num_slots, *slab.shape[1:])
                taken = source._rows_of(slab)[source_rows, :length]
                self._rows_of(own[layer])[rows, :length] = taken

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row but the given ones (in the given order)."""
        for slabs in (self._keys, self._values):
            for layer, slab in slabs.items():
                slabs[layer] = self._rows_of(slab)[rows].flatten(0, 1)
        self.num_rows = int(rows.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes that the slabs hold."""
        return sum(
            slab.numel() * slab.element_size() for slabs in (self._keys, self._values) for slab in slabs.values()
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows differ in length; models get explicit positions and never need this."""
        return 0
