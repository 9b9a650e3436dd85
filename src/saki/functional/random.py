"""Keyed random numbers: Philox4x32-10, addressed by who asks and not by when.

Every random number of a rollout is a pure function of (request seed, prompt key, sample index, response
position, stream, lane). Nothing here reads or moves global random state, so the same request gives the same
numbers for every block size, batch composition, schedule and replica, and after every restart.

Counter and key layout (32-bit words):

    key     = (low word of the request seed, high word of the request seed)
    counter = (lane, stream << 28 | position, sample index, prompt key)

A lane is one block of 128 bits, which makes two float64 uniforms.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

_DOMAINS = {"train": 1, "eval": 2, "probe": 3}


class Stream(enum.IntEnum):
    """Independent uses of randomness at one response position."""

    PROPOSAL = 0
    ACCEPT = 1
    RESIDUAL = 2
    TEACHER_SAMPLE = 3
    PLACEMENT = 4


@dataclass(frozen=True)
class RowKeys:
    """Identity of each row in the random numbers.

    Attributes:
        seed: Request seed, 64 bits.
        prompt_keys: [B] int64 in [0, 2**32).
        sample_indices: [B] int64 in [0, 2**32).
    """

    seed: int
    prompt_keys: Tensor
    sample_indices: Tensor

    def select(self, rows: Tensor) -> RowKeys:
        """The keys of some rows, in the given order."""
        return RowKeys(self.seed, self.prompt_keys[rows], self.sample_indices[rows])


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Philox4x32-10 (Salmon et al., SC 2011).

    Args:
        counter: Four int64 tensors that broadcast, each word in [0, 2**32).
        key: Two words in [0, 2**32).

    Returns:
        Four int64 tensors of the broadcast shape, each word in [0, 2**32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 products wrap modulo 2**64, which keeps both 32-bit halves right.
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def keyed_uniforms(keys: RowKeys, positions: Tensor, stream: Stream, num: int = 1) -> Tensor:
    """Uniforms in the open interval (0, 1), on the odd multiples of 2**-53.

    Args:
        keys: Identity of the rows, B of them.
        positions: [B] or [B, K] int64, absolute response positions in [0, 2**28).
        stream: Which use at this position.
        num: Uniforms wanted per position.

    Returns:
        [*positions.shape, num] float64. The first n of them do not depend on ``num``.
    """
    shape = positions.shape
    extra = (1,) * (positions.dim() - 1)
    prompt_keys = keys.prompt_keys.view(-1, *extra, 1)
    sample_indices = keys.sample_indices.view(-1, *extra, 1)
    address = (positions + (int(stream) << 28)).unsqueeze(-1)
    lanes = torch.arange((num + 1) // 2, dtype=torch.int64, device=positions.device)
    words = philox4x32((lanes, address, sample_indices, prompt_keys), (keys.seed & _MASK, keys.seed >> 32))
    w0, w1, w2, w3 = (word.expand(*shape, lanes.shape[0]) for word in words)
    pairs = torch.stack([_open_uniform(w0, w1), _open_uniform(w2, w3)], dim=-1)
    return pairs.flatten(-2)[..., :num]


def _open_uniform(high: Tensor, low: Tensor) -> Tensor:
    # 52 random bits k give (2k + 1) / 2**53: exact in float64, never 0 or 1.
    bits = (high << 20) | (low >> 12)
    return (2 * bits + 1).to(torch.float64) * 2.0**-53


def request_seed(run_seed: int, domain: str, step: int) -> int:
    """The 64-bit seed of one request: a Philox block of (run seed, domain, step).

    Args:
        run_seed: Seed of the run, in [0, 2**64).
        domain: ``"train"``, ``"eval"`` or ``"probe"``.
        step: Optimizer step that the rollout serves, in [0, 2**32).

    Raises:
        ValueError: If one of them is out of range.
    """
    if domain not in _DOMAINS:
        raise ValueError(f"domain must be one of {sorted(_DOMAINS)}, got {domain!r}")
    if not 0 <= run_seed < 2**64:
        raise ValueError(f"run_seed must lie in [0, 2**64), got {run_seed}")
    if not 0 <= step < 2**32:
        raise ValueError(f"step must lie in [0, 2**32), got {step}")
    counter = tuple(torch.tensor([word], dtype=torch.int64) for word in (step, _DOMAINS[domain], 0, 0))
    low, high, *_ = philox4x32(counter, (run_seed & _MASK, run_seed >> 32))  # type: ignore[arg-type]
    return int(low) | (int(high) << 32)
