"""A language model behind a cache that can roll back: what engines drive."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from saki.models import LogitHead, TableLM, check_architecture, mask_padding_ids, plain_state
from saki.rollout.attention import causal_slab_mask, plainly_causal, register_slab_attention
from saki.rollout.compiled import CompiledForward
from saki.rollout.kv_cache import SlabCache


class DecoderCache(Protocol):
    """What a decoder keeps of the tokens it has seen, B rows."""

    num_rows: int
    version: int

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row but the given ones."""
        ...

    def copy_rows(self, source: Any, source_rows: Tensor, rows: Tensor, length: int) -> None:
        """Take over the first ``length`` entries of some rows of another cache of the same decoder."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache holds."""
        ...


HALF_SYNCED = -2
"""Version of weights that a sync has begun to replace and not finished."""


class StaleCacheError(RuntimeError):
    """A cache filled by other weights was offered to a decoder."""


class HalfSyncedError(RuntimeError):
    """A decoder was asked for logits while it holds weights of two versions."""


class Decoder(Protocol):
    """One causal model with a roll-back cache.

    Attributes:
        vocab_size: Real ids; logits have exactly this width.
        device: Where token ids and logits live.
        dtype: Parameter dtype.
        version: Version of the weights; caches of another version are refused.
        max_positions: Longest sequence that the model takes, or None.
    """

    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    version: int
    max_positions: int | None

    def new_cache(self, num_rows: int, num_slots: int) -> DecoderCache:
        """An empty cache for ``num_rows`` rows of up to ``num_slots`` positions."""
        ...

    def forward(self, token_ids: Tensor, starts: Tensor, cache: Any, visible: int, num_logits: int) -> Tensor:
        """Feed [B, Q] tokens at positions starts[b] .. starts[b] + Q - 1 and extend the cache.

        Args:
            token_ids: [B, Q] int64.
            starts: [B] int64, entries of the cache that stay valid.
            cache: From :meth:`new_cache`.
            visible: An upper bound of starts + Q over the rows.
            num_logits: How many of the last queries want logits, at least 1.

        Returns:
            [B, num_logits, vocab_size].
        """
        ...

    def cache_bytes(self, num_slots: int) -> int:
        """Bytes of one row of a cache with so many positions."""
        ...

    def compile(self) -> None:
        """Run forwards as compiled graphs from now on, where there is something to compile."""
        ...

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that defines the model, in a fixed order, tied ones once."""
        ...


class HFDecoder:
    """A Hugging Face causal LM with plain causal attention, run on key-value slabs.

    The model is taken over: its attention implementation is switched to slab attention, it is put into eval
    mode and its parameters stop requiring gradients. Give it a module of its own.

    Args:
        model: The model.
        vocab_size: Real ids; wider logits are cut, so padding ids have no probability anywhere.

    Raises:
        UnsupportedArchitectureError: If a layer is not plain causal softmax attention.
    """

    def __init__(self, model: nn.Module, vocab_size: int) -> None:
        config: Any = model.config
        report = check_architecture(config, type(model))
        model.set_attn_implementation(register_slab_attention())  # type: ignore[operator]
        model.eval().requires_grad_(False)
        self.model = model
        self.vocab_size = vocab_size
        self.version = 0
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.max_positions: int | None = report.max_positions
        self._windows = report.distinct_windows()
        self._masks_by_type = report.takes_mask_mapping
        self._head = LogitHead(model)
        names = inspect.signature(type(model).forward).parameters
        # transformers 5.17 names the argument past_key_values, 5.24 cache.
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._compiled: CompiledForward | None = None

    def compile(self) -> None:
        """Run decoding forwards, those that want the logits of every query, as one graph from now on.

        Prefill stays eager: its lengths vary and its work is the products'. The first forwards take seconds to
        compile; a C++ compiler is needed on a CPU, Triton on a GPU.
        """
        if self._compiled is None:
            self._compiled = CompiledForward(self.model, self._cache_name)

    def new_cache(self, num_rows: int, num_slots: int) -> SlabCache:
        """See :meth:`Decoder.new_cache`."""
        return SlabCache(num_rows, num_slots, self.version)

    @torch.no_grad()
    def forward(self, token_ids: Tensor, starts: Tensor, cache: SlabCache, visible: int, num_logits: int) -> Tensor:
        """See :meth:`Decoder.forward`."""
        arguments = self._arguments(token_ids, starts, cache, visible)
        if self._compiled is not None and cache.keys and num_logits == token_ids.shape[1]:
            return mask_padding_ids(self._compiled(arguments, cache), self.vocab_size)
        return mask_padding_ids(self.model(**arguments, logits_to_keep=num_logits).logits, self.vocab_size)

    @torch.no_grad()
    def features(self, token_ids: Tensor) -> Tensor:
        """What :meth:`project` turns into logits, for whole sequences from position 0.

        Args:
            token_ids: [B, Q] int64, padded on the right; padding is never looked at by what stands before it.

        Returns:
            [B, Q, hidden].
        """
        starts = torch.zeros(token_ids.shape[0], dtype=torch.long, device=token_ids.device)
        if any(self._windows.values()):
            arguments = self._arguments(token_ids, starts, self.new_cache(*token_ids.shape), token_ids.shape[1])
        else:  # neither a mask of queries by slots nor keys and values that nobody comes back to
            mask = plainly_causal(token_ids.device)
            arguments = {
                "input_ids": token_ids,
                "attention_mask": dict.fromkeys(self._windows, mask) if self._masks_by_type else mask,
                "position_ids": torch.arange(token_ids.shape[1], device=token_ids.device).expand_as(token_ids),
                "use_cache": False,
            }
        features: Tensor = self.model.base_model(**arguments).last_hidden_state  # type: ignore[operator]
        return features

    @torch.no_grad()
    def project(self, features: Tensor) -> Tensor:
        """Logits [..., vocab_size] from :meth:`features` of any positions."""
        return mask_padding_ids(self._head(features), self.vocab_size)

    def _arguments(self, token_ids: Tensor, starts: Tensor, cache: SlabCache, visible: int) -> dict[str, Any]:
        refuse_stale(cache, self.version)
        positions = starts.unsqueeze(1) + torch.arange(token_ids.shape[1], device=token_ids.device)
        cache.begin(positions, visible)
        # The last drafts of a row may reach beyond the model's positions. They are never committed, but an embedding of
        # positions has no entry for them, and some rotary frequencies follow the largest position of the batch.
        known = positions if self.max_positions is None else positions.clamp(max=self.max_positions - 1)
        masks = {name: causal_slab_mask(positions, visible, window) for name, window in self._windows.items()}
        return {
            "input_ids": token_ids,
            "attention_mask": masks if self._masks_by_type else next(iter(masks.values())),
            "position_ids": known,
            "use_cache": True,
            self._cache_name: cache,
        }

    def cache_bytes(self, num_slots: int) -> int:
        """See :meth:`Decoder.cache_bytes`; measured on a cache of one position."""
        cache = self.new_cache(1, 1)
        zero = torch.zeros(1, dtype=torch.long, device=self.device)
        self.forward(zero.unsqueeze(0), zero, cache, 1, 1)
        return cache.num_bytes * num_slots

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See :meth:`Decoder.named_tensors`."""
        yield from plain_state(self.model)


class TableCache:
    """Token history of a table model: [B, slots] ids."""

    def __init__(self, num_rows: int, num_slots: int, version: int, device: torch.device) -> None:
        self.num_rows, self.version = num_rows, version
        self.tokens = torch.full((num_rows, num_slots), -1, dtype=torch.long, device=device)

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row but the given ones."""
        self.tokens = self.tokens[rows.to(self.tokens.device)]
        self.num_rows = int(rows.shape[0])

    def copy_rows(self, source: TableCache, source_rows: Tensor, rows: Tensor, length: int) -> None:
        """Take over the first ``length`` entries of some rows of another cache."""
        device = self.tokens.device
        self.tokens[rows.to(device), :length] = source.tokens[source_rows.to(device), :length]

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache holds."""
        return self.tokens.numel() * self.tokens.element_size()


class TableDecoder:
    """A toy table model behind the same cache contract; what it reads of the past comes from the cache alone."""

    def __init__(self, model: TableLM) -> None:
        self.model = model.requires_grad_(False)
        self.vocab_size = model.vocab_size
        self.version = 0
        self.max_positions: int | None = None
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype

    def new_cache(self, num_rows: int, num_slots: int) -> TableCache:
        """See :meth:`Decoder.new_cache`."""
        return TableCache(num_rows, num_slots, self.version, self.device)

    @torch.no_grad()
    def forward(self, token_ids: Tensor, starts: Tensor, cache: TableCache, visible: int, num_logits: int) -> Tensor:
        """See :meth:`Decoder.forward`."""
        refuse_stale(cache, self.version)
        queries = token_ids.shape[1]
        positions = starts.unsqueeze(1) + torch.arange(queries, device=token_ids.device)
        cache.tokens.scatter_(1, positions, token_ids)
        # Each entry depends on the slots up to its own position alone; unused slots hold -1 and are never asked for.
        logits = self.model.logits(cache.tokens[:, :visible].clamp(min=0))
        wanted = positions[:, queries - num_logits :].unsqueeze(-1).expand(-1, -1, self.vocab_size)
        return logits.gather(1, wanted)

    def cache_bytes(self, num_slots: int) -> int:
        """See :meth:`Decoder.cache_bytes`."""
        return self.new_cache(1, num_slots).num_bytes

    def compile(self) -> None:
        """A look-up has nothing to compile."""

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """See :meth:`Decoder.named_tensors`."""
        yield from self.model.named_parameters()


def refuse_stale(cache: DecoderCache, version: int) -> None:
    """Refuse a cache that other weights have filled, and weights of two versions.

    Raises:
        StaleCacheError: If the cache is of another version.
        HalfSyncedError: If a sync has begun and not finished.
    """
    if version == HALF_SYNCED:
        raise HalfSyncedError(
            "a weight sync was begun and not finished, so the model holds weights of two versions; sync again"
        )
    if cache.version != version:
        raise StaleCacheError(f"the cache was filled by weights of version {cache.version}, the model is at {version}")
