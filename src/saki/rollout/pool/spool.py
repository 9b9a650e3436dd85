"""The weights of the last sync on the driver's disk, for replicas that are replaced between two syncs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch
from safetensors import safe_open
from torch import Tensor

from saki.files import writing
from saki.rollout.pool.buckets import Bucket, Table

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}


class Spool:
    """Keeps the student of one version as a safetensors file, written bucket by bucket as they are sent.

    The source of a sync's weights can be asked once only, and with a single replica no other holds them: what a
    replaced replica needs must lie somewhere else. A file needs no memory of the driver, and it is the same way in for
    every replica. It is checked like a sync: the replica's checksum must be that of the version.

    Args:
        folder: Where the file lies; made where it is missing. A folder in memory, such as ``/dev/shm/saki``, makes
            syncs faster.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "student.safetensors"
        self._growing = folder / ".student.safetensors.unfinished"
        self._offsets: dict[str, int] = {}
        self._file: IO[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def begin(self, table: Table) -> None:
        """Start a new version beside the present one."""
        self._drop_growing()
        header: dict[str, object] = {}
        end = 0
        for name, (shape, dtype) in table.items():
            size = math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [end, end + size]}
            self._offsets[name] = end
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with writing(self._growing):
            self._file = self._growing.open("wb")
            self._file.write(len(text).to_bytes(8, "little") + text)
        self._offsets = {name: 8 + len(text) + offset for name, offset in self._offsets.items()}

    def add(self, bucket: Bucket) -> None:
        """Write what a bucket holds to its place.

        Raises:
            DiskFullError: If there is no room.
        """
        assert self._file is not None
        with writing(self._growing):
            for entry in bucket.entries:
                size = getattr(torch, entry.dtype).itemsize
                self._file.seek(self._offsets[entry.name] + entry.begin * size)
                self._file.write(bucket.data[entry.offset : entry.offset + entry.count * size].data)

    def finish(self) -> None:
        """The new version takes the place of the old one."""
        assert self._file is not None
        with writing(self._growing):
            self._file.close()
            self._file = None
            self._growing.replace(self._path)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The stored weights, one at a time."""
        with safe_open(self._path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - no mapping
                yield name, stored.get_tensor(name)

    def close(self) -> None:
        """Remove the files."""
        self._drop_growing()
        self._path.unlink(missing_ok=True)

    def _drop_growing(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._growing.unlink(missing_ok=True)
