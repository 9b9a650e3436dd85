"""Toy models for tests: Markov tables whose law can be enumerated, and tiny random transformers."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from saki.models.casting import cast_weights

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, Qwen3ForCausalLM


class TableLM(nn.Module):
    """A language model whose next-token logits are a table over the last ``order`` tokens.

    The context of a position is the token there and the ``order - 1`` before it; positions before the first one hold
    a begin symbol. With ``use_parity`` the table also depends on whether the position is even or odd, so that a
    position off by one shows.

    Args:
        vocab_size: V.
        order: Tokens of context, at least 0 (0: one distribution for all contexts).
        seed: Seed of the table. No global random state is read or moved.
        sharpness: Standard deviation of the logits; large values give confident rows.
        forbidden: Entries set to -inf in every row, in [0, V).
        use_parity: Whether the position's parity is part of the context.
        dtype: Dtype of the table.

    Attributes:
        table: [num_contexts, V] logits, a parameter.
    """

    def __init__(
        self,
        vocab_size: int,
        order: int = 1,
        *,
        seed: int = 0,
        sharpness: float = 1.0,
        forbidden: int = 0,
        use_parity: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if vocab_size < 1 or order < 0:
            raise ValueError(f"vocab_size must be at least 1 and order at least 0, got {vocab_size} and {order}")
        if not 0 <= forbidden < vocab_size:
            raise ValueError(f"forbidden must lie in [0, {vocab_size}), got {forbidden}")
        self.vocab_size, self.order, self.use_parity = vocab_size, order, use_parity
        contexts = (vocab_size + 1) ** order * (2 if use_parity else 1)
        generator = torch.Generator().manual_seed(seed)
        table = sharpness * torch.randn(contexts, vocab_size, generator=generator, dtype=torch.float64)
        if forbidden:
            banned = torch.rand(contexts, vocab_size, generator=generator).argsort(dim=1)[:, :forbidden]
            table.scatter_(1, banned, float("-inf"))
        self.table = nn.Parameter(table.to(dtype))

    @property
    def begin_id(self) -> int:
        """The symbol that stands before the first token in a context; it is never a token."""
        return self.vocab_size

    def context_rows(self, token_ids: Tensor) -> Tensor:
        """Table row of each position.

        Args:
            token_ids: [B, Q] int64 full prefixes from position 0, ids in [0, V).

        Returns:
            [B, Q] int64.
        """
        length = token_ids.shape[1]
        padded = nn.functional.pad(token_ids, (max(self.order - 1, 0), 0), value=self.begin_id)
        rows = torch.zeros_like(token_ids)
        for back in range(self.order):
            start = self.order - 1 - back
            rows = rows + padded[:, start : start + length] * (self.vocab_size + 1) ** back
        if self.use_parity:
            rows = rows * 2 + torch.arange(length, device=token_ids.device) % 2
        return rows

    def logits(self, token_ids: Tensor, last: int | None = None) -> Tensor:
        """Next-token logits after each position of full prefixes.

        Args:
            token_ids: [B, Q_total] int64 full prefixes from position 0.
            last: How many trailing positions to return, by default all.

        Returns:
            [B, Q, V] logits; position i is the law of the token at i + 1.
        """
        rows = self.context_rows(token_ids)
        return self.table[rows if last is None else rows[:, rows.shape[1] - last :]]

    def forward(self, token_ids: Tensor) -> Tensor:
        """Same as :meth:`logits`."""
        return self.logits(token_ids)


def enumerate_sequences(vocab_size: int, length: int, stop_ids: Collection[int] = ()) -> list[tuple[int, ...]]:
    """Every completion of at most ``length`` tokens: each ends at its first stop id, or at the cap.

    Their probabilities under any model sum to 1.

    Args:
        vocab_size: V.
        length: Cap, at least 1.
        stop_ids: Ids that end a completion and belong to it.

    Returns:
        The completions in lexicographic order.

    Example:
        >>> enumerate_sequences(2, 2, stop_ids={1})
        [(0, 0), (0, 1), (1,)]
    """
    if vocab_size < 1 or length < 1:
        raise ValueError(f"vocab_size and length must be at least 1, got {vocab_size} and {length}")
    cut: dict[tuple[int, ...], None] = {}
    for full in itertools.product(range(vocab_size), repeat=length):
        ends = [position for position, token in enumerate(full) if token in stop_ids]
        cut[full[: ends[0] + 1] if ends else full] = None
    return list(cut)


def tiny_qwen3(
    vocab_size: int = 32,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    scale: float = 0.2,
) -> Qwen3ForCausalLM:
    """A tiny random Qwen3 in eval mode, on the CPU.

    Args:
        vocab_size: V, the width of its logits.
        hidden: Hidden size; the head width is ``hidden // heads``.
        layers: Decoder layers.
        heads: Query heads.
        kv_heads: Key and value heads.
        seed: Seed of the weights. The global random state is left as it was.
        dtype: Dtype of the weights. Norms of the library compute in float32 all the same.
        scale: Standard deviation of the weights; large values give confident rows.

    Returns:
        The model. Its config names no end id: set ``config.eos_token_id`` where one is needed.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _build(Qwen3Config, Qwen3ForCausalLM, vocab_size, hidden, layers, heads, kv_heads, seed, dtype, scale)


def tiny_llama(
    vocab_size: int = 32,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    scale: float = 0.2,
) -> LlamaForCausalLM:
    """A tiny random Llama in eval mode; arguments as in :func:`tiny_qwen3`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _build(LlamaConfig, LlamaForCausalLM, vocab_size, hidden, layers, heads, kv_heads, seed, dtype, scale)


def _build(
    config_class: Any,
    model_class: Any,
    vocab_size: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    seed: int,
    dtype: torch.dtype,
    scale: float,
) -> Any:
    config = config_class(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=4096,
        initializer_range=scale,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    cast_weights(model, dtype)
    return model.eval()
