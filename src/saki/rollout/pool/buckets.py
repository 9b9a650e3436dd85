"""Weights on their way: cut into buckets of bounded size, each with the checksums of what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saki.rollout.sync import ChecksumMismatchError, ModelDigest, Piece, WeightSyncError, tensor_checksum

_ALIGN = 8

Table = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of each tensor of an engine's student, by name."""


@dataclass(frozen=True)
class Entry:
    """One piece in a bucket.

    Attributes:
        name: Name of the weight.
        shape: Shape of the whole weight.
        dtype: Its dtype, such as ``"bfloat16"``.
        begin: Place of the piece's first number in the flattened weight.
        count: Numbers of the piece.
        offset: Where its bytes begin in the bucket.
        checksum: Of its words, as :func:`saki.rollout.sync.tensor_checksum` counts them from the piece's place.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    begin: int
    count: int
    offset: int
    checksum: int


@dataclass(frozen=True)
class Bucket:
    """Some of the weights, in the engine's dtype.

    Attributes:
        index: Its place in the stream, from 0.
        entries: What it holds.
        data: [n] uint8, the raw bytes.
    """

    index: int
    entries: tuple[Entry, ...]
    data: np.ndarray[Any, np.dtype[np.uint8]]


def cut_buckets(
    weights: Iterable[tuple[str, Tensor]], table: Table, bucket_bytes: int, digest: ModelDigest
) -> Iterator[Bucket]:
    """Cast weights to the engine's dtype and cut them into buckets; one bucket exists at a time.

    Args:
        weights: (name, tensor), each once. A large tensor is spread over several buckets.
        table: What the engine's student consists of.
        bucket_bytes: Size of a bucket, at least 8.
        digest: Takes every piece that goes out.

    Raises:
        WeightSyncError: If a name is unknown, missing or comes twice, or a shape differs.
    """
    data, entries, used, index = np.empty(bucket_bytes, dtype=np.uint8), list[Entry](), 0, 0
    missing = set(table)
    for name, tensor in weights:
        if name not in missing:
            kind = "comes twice" if name in table else "is unknown to the engine's student"
            raise WeightSyncError(f"weight {name!r} {kind}; send each of its {len(table)} tensors once")
        shape, dtype = table[name]
        if tuple(tensor.shape) != shape:
            raise WeightSyncError(
                f"weight {name!r} has shape {tuple(tensor.shape)}, the engine's student expects {shape}"
            )
        missing.discard(name)
        flat, begin = tensor.detach().reshape(-1), 0
        while begin < flat.numel():
            room = (bucket_bytes - used) // dtype.itemsize
            if room == 0:
                yield Bucket(index, tuple(entries), data[:used])
                # The old bytes may still be read by whoever the bucket went to.
                data, entries, used, index = np.empty(bucket_bytes, dtype=np.uint8), [], 0, index + 1
                continue
            values = flat[begin : begin + room].to(dtype).contiguous()
            checksum = digest.add(name, shape, values, begin)  # where the weights are: a GPU does it in no time
            raw = values.cpu().view(torch.uint8).numpy()
            data[used : used + raw.size] = raw
            dtype_name = str(dtype).removeprefix("torch.")
            entries.append(Entry(name, shape, dtype_name, begin, values.numel(), used, checksum))
            begin += values.numel()
            used = min(bucket_bytes, used + raw.size + -raw.size % _ALIGN)
        if not flat.numel():
            digest.add(name, shape, flat.to(dtype))
    if missing:
        raise WeightSyncError(f"{len(missing)} weights were not sent, the first is {min(missing)!r}")
    if entries:
        yield Bucket(index, tuple(entries), data[:used])


def open_bucket(bucket: Bucket, device: torch.device | str = "cpu") -> list[Piece]:
    """The pieces of a bucket, once every one has been found to be what was sent.

    Args:
        bucket: The bucket.
        device: Where the weights go; they are checked there.

    Raises:
        ChecksumMismatchError: If a bit changed on the way.
    """
    # Shared memory is not to be written, and torch wants to know that it may.
    whole = torch.from_numpy(bucket.data.copy()).to(device)
    pieces = []
    for entry in bucket.entries:
        dtype = getattr(torch, entry.dtype)
        values = whole[entry.offset : entry.offset + entry.count * dtype.itemsize].view(dtype)
        if tensor_checksum(values, entry.begin) != entry.checksum:
            raise ChecksumMismatchError(
                f"weight {entry.name!r} arrived with another checksum than it was sent with (bucket {bucket.index})"
            )
        pieces.append(Piece(entry.name, entry.shape, entry.begin, values))
    return pieces
