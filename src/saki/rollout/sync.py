"""Weight sync: copy, version, checksum and a log-prob probe (Appendix K.4, K.5)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from saki.functional import normalized_log_probs
from saki.rollout.decoder import Decoder
from saki.rollout.protocol import SyncReport

_PROBE_LENGTH = 8
_CHECKSUM_WORDS = 2**20
_INTEGER_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightSyncError(ValueError):
    """The weights offered to an engine do not fit its student."""


def tensor_checksum(tensor: Tensor) -> int:
    """sum_i word_i * (2 i + 1) modulo 2**64 over the tensor's raw words; any single changed bit changes it."""
    words = tensor.detach().contiguous().view(_INTEGER_VIEW[tensor.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, words.shape[0], _CHECKSUM_WORDS):  # wide copies of a whole embedding would be gigabytes
        piece = words[begin : begin + _CHECKSUM_WORDS].to(torch.int64)
        total += (piece * (2 * torch.arange(begin, begin + piece.shape[0], device=words.device) + 1)).sum()
    return int(total) % 2**64


def model_checksum(named_tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Checksum of a model's tensors: names, shapes, dtypes and bits, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(named_tensors, key=lambda item: item[0]):
        facts = f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|{tensor_checksum(tensor)}\n"
        digest.update(facts.encode())
    return digest.hexdigest()


@torch.no_grad()
def sync_decoder(decoder: Decoder, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
    """Copy weights into a decoder, cast to its dtype, and raise its version.

    Args:
        decoder: Takes the weights; caches of its old version are refused from now on.
        weights: (name, tensor) under the decoder's own names, each of its tensors exactly once.
        version: New version.

    Returns:
        What was done. ``probe_change`` compares the log-probs of a fixed prefix before and after.

    Raises:
        WeightSyncError: If a name is unknown, missing or comes twice, or a shape differs.
    """
    begin = time.perf_counter()
    before = _probe(decoder)
    targets = dict(decoder.named_tensors())
    missing = set(targets)
    for name, tensor in weights:
        if name not in missing:
            kind = "comes twice" if name in targets else "is unknown to the engine's student"
            raise WeightSyncError(f"weight {name!r} {kind}; send each of its {len(targets)} tensors once")
        if tensor.shape != targets[name].shape:
            raise WeightSyncError(
                f"weight {name!r} has shape {tuple(tensor.shape)}, the engine's student expects "
                f"{tuple(targets[name].shape)}"
            )
        targets[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise WeightSyncError(f"{len(missing)} weights were not sent, the first is {min(missing)!r}")
    decoder.version = version
    after = _probe(decoder)
    finite = torch.isfinite(before) & torch.isfinite(after)
    return SyncReport(
        version=version,
        checksum=model_checksum(decoder.named_tensors()),
        probe_change=float((after - before)[finite].abs().max()) if bool(finite.any()) else float("nan"),
        seconds=time.perf_counter() - begin,
    )


def _probe(decoder: Decoder) -> Tensor:
    """Log-probs [V] after a fixed prefix of low ids."""
    prefix = torch.arange(_PROBE_LENGTH, device=decoder.device).remainder(decoder.vocab_size).unsqueeze(0)
    starts = torch.zeros(1, dtype=torch.long, device=decoder.device)
    cache = decoder.new_cache(1, _PROBE_LENGTH)
    return normalized_log_probs(decoder.forward(prefix, starts, cache, _PROBE_LENGTH, 1))[0, 0]
