"""Weight sync: pieces copied in as they come, version, checksum and a log-prob probe (Appendix K.4, K.5)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from saki.functional import normalized_log_probs
from saki.rollout.decoder import HALF_SYNCED, Decoder
from saki.rollout.protocol import SyncReport

_PROBE_LENGTH = 8
_CHECKSUM_WORDS = 2**17
"""Words of a piece on a CPU, so that its wide copy stays in the cache."""

_DEVICE_WORDS = 2**22
"""Words of a piece elsewhere."""

_INTEGER_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightSyncError(ValueError):
    """The weights offered to an engine do not fit its student."""


class ChecksumMismatchError(WeightSyncError):
    """What arrived is not what was sent."""


def tensor_checksum(tensor: Tensor, first: int = 0) -> int:
    """sum_i word_i * (2 i + 1) modulo 2**64 over the tensor's raw words; any single changed bit changes it.

    Args:
        tensor: The tensor, or consecutive words of one.
        first: Place of its first word in the whole; the checksums of a tensor's parts add up to its own.
    """
    words = tensor.detach().contiguous().view(_INTEGER_VIEW[tensor.element_size()]).flatten()
    on_cpu = words.device.type == "cpu"
    size = min(_CHECKSUM_WORDS if on_cpu else _DEVICE_WORDS, words.shape[0])
    odd = 2 * torch.arange(size, device=words.device) + 1
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, words.shape[0], max(size, 1)):  # wide copies of a whole embedding would be gigabytes
        piece = words[begin : begin + size].to(torch.int64)
        factors = odd[: piece.shape[0]]
        # Only the CPU has a product of integer vectors that makes no third one.
        total += torch.dot(piece, factors) if on_cpu else (piece * factors).sum()
        total += 2 * (first + begin) * piece.sum()
    return int(total) % 2**64


class ModelDigest:
    """Checksum of a model's tensors that come in parts: names, shapes, dtypes and bits."""

    def __init__(self) -> None:
        self._facts: dict[str, str] = {}
        self._sums: dict[str, int] = {}

    def add(self, name: str, shape: tuple[int, ...], values: Tensor, first: int = 0) -> int:
        """Take a tensor, or the part of it that begins at word ``first``; returns the part's own checksum."""
        part = tensor_checksum(values, first)
        self._facts[name] = f"{name}|{tuple(shape)}|{values.dtype}"
        self._sums[name] = (self._sums.get(name, 0) + part) % 2**64
        return part

    def hexdigest(self) -> str:
        """32 hex digits."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self._facts):
            digest.update(f"{self._facts[name]}|{self._sums[name]}\n".encode())
        return digest.hexdigest()


def model_checksum(named_tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Checksum of a model's tensors: names, shapes, dtypes and bits, as 32 hex digits."""
    digest = ModelDigest()
    for name, tensor in named_tensors:
        digest.add(name, tuple(tensor.shape), tensor)
    return digest.hexdigest()


@dataclass(frozen=True)
class Piece:
    """Consecutive numbers of one weight.

    Attributes:
        name: Name of the weight in the engine's student.
        shape: Shape of the whole weight.
        begin: Place of the first number in the flattened weight.
        values: [n], the numbers.
    """

    name: str
    shape: tuple[int, ...]
    begin: int
    values: Tensor


class WeightReceiver:
    """Takes the weights of one version, piece by piece, straight into a decoder.

    From :meth:`begin` to a successful :meth:`finish` the decoder holds a mixture of two versions. It carries the
    version ``HALF_SYNCED`` for that time and refuses every forward, so that an interrupted sync cannot draft; the way
    out is another sync from its beginning.

    Args:
        decoder: Takes the weights; caches of its old version are refused from :meth:`begin` on.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._targets: dict[str, Tensor] = {}
        self._filled: dict[str, int] = {}
        self._version: int | None = None
        self._reference: Tensor | None = None
        self._num_bytes = 0
        self._began = 0.0

    @torch.no_grad()
    def begin(self, version: int) -> None:
        """Start a sync; one that was under way is given up.

        Raises:
            ValueError: If the version is negative.
        """
        if version < 0:
            raise ValueError(f"the version of weights must be at least 0, got {version}")
        self._began = time.perf_counter()
        if self._decoder.version != HALF_SYNCED:
            self._reference = _probe(self._decoder)
        self._targets = dict(self._decoder.named_tensors())
        self._filled, self._num_bytes, self._version = {}, 0, version
        self._decoder.version = HALF_SYNCED

    @torch.no_grad()
    def add(self, piece: Piece) -> None:
        """Copy a piece in, cast to the decoder's dtype. Pieces of one weight come in order.

        Raises:
            WeightSyncError: If no sync has begun, the name is unknown or comes twice, or the piece does not fit.
        """
        name, count = piece.name, piece.values.numel()
        if self._version is None:
            raise WeightSyncError(f"weight {name!r} came before a sync had begun; call begin first")
        if name not in self._targets:
            raise WeightSyncError(
                f"weight {name!r} is unknown to the engine's student; send each of its {len(self._targets)} tensors "
                "once"
            )
        target, done = self._targets[name], self._filled.get(name)
        if tuple(piece.shape) != tuple(target.shape):
            raise WeightSyncError(
                f"weight {name!r} has shape {tuple(piece.shape)}, the engine's student expects {tuple(target.shape)}"
            )
        if done == target.numel():
            raise WeightSyncError(
                f"weight {name!r} comes twice; send each of the student's {len(self._targets)} tensors once"
            )
        if piece.begin != (done or 0) or piece.begin + count > target.numel():
            raise WeightSyncError(
                f"weight {name!r} goes on at {piece.begin} with {count} numbers, expected {done or 0} of "
                f"{target.numel()}; send its pieces in order, without gaps"
            )
        if count == target.numel():
            target.copy_(piece.values.view(target.shape))
        else:
            target.view(-1)[piece.begin : piece.begin + count].copy_(piece.values)
        self._filled[name] = piece.begin + count
        self._num_bytes += count * target.element_size()

    @torch.no_grad()
    def finish(self, expected_checksum: str | None = None) -> SyncReport:
        """Close the sync: the decoder has its new version.

        Args:
            expected_checksum: Checksum of what was sent, in the decoder's dtype; None for a sync within one process.

        Returns:
            What was done. ``probe_change`` compares the log-probs of a fixed prefix before and after; it is NaN where
            there is no complete version to compare with.

        Raises:
            WeightSyncError: If a weight is missing.
            ChecksumMismatchError: If what arrived differs from what was sent.
        """
        if self._version is None:
            raise WeightSyncError("a sync was closed before it had begun; call begin first")
        missing = [name for name, tensor in self._targets.items() if self._filled.get(name) != tensor.numel()]
        if missing:
            raise WeightSyncError(f"{len(missing)} weights were not sent, the first is {min(missing)!r}")
        checksum = model_checksum(self._decoder.named_tensors())
        if expected_checksum is not None and checksum != expected_checksum:
            raise ChecksumMismatchError(
                f"the weights of version {self._version} arrived with checksum {checksum}, sent was "
                f"{expected_checksum}; sync again"
            )
        self._decoder.version = self._version
        after = _probe(self._decoder)
        report = SyncReport(
            version=self._version,
            checksum=checksum,
            probe_change=_largest_change(self._reference, after),
            seconds=time.perf_counter() - self._began,
            num_bytes=self._num_bytes,
        )
        self._targets, self._version, self._reference = {}, None, None
        return report


def sync_decoder(decoder: Decoder, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
    """Copy weights into a decoder, cast to its dtype, and raise its version.

    Args:
        decoder: Takes the weights; caches of its old version are refused from now on. After an error it refuses every
            forward until a sync is complete.
        weights: (name, tensor) under the decoder's own names, each of its tensors exactly once.
        version: New version.

    Returns:
        What was done. ``probe_change`` compares the log-probs of a fixed prefix before and after.

    Raises:
        WeightSyncError: If a name is unknown, missing or comes twice, or a shape differs.
    """
    receiver = WeightReceiver(decoder)
    receiver.begin(version)
    for name, tensor in weights:
        receiver.add(Piece(name, tuple(tensor.shape), 0, tensor.detach().reshape(-1)))
    return receiver.finish()


def _largest_change(before: Tensor | None, after: Tensor) -> float:
    if before is None:
        return float("nan")
    finite = torch.isfinite(before) & torch.isfinite(after)
    return float((after - before)[finite].abs().max()) if bool(finite.any()) else float("nan")


def _probe(decoder: Decoder) -> Tensor:
    """Log-probs [V] after a fixed prefix of low ids."""
    prefix = torch.arange(_PROBE_LENGTH, device=decoder.device).remainder(decoder.vocab_size).unsqueeze(0)
    starts = torch.zeros(1, dtype=torch.long, device=decoder.device)
    cache = decoder.new_cache(1, _PROBE_LENGTH)
    return normalized_log_probs(decoder.forward(prefix, starts, cache, _PROBE_LENGTH, 1))[0, 0]
