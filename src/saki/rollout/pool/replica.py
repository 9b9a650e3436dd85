"""One replica: a resident engine in a process of its own, asked one thing at a time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import torch

from saki.rollout.decoder import Decoder
from saki.rollout.external_process import ServedModel
from saki.rollout.external_server import load_decoder
from saki.rollout.pool.buckets import Bucket, Table, open_bucket
from saki.rollout.protocol import EngineStats, ScoreResult, SyncReport
from saki.rollout.resident import ResidentEngine
from saki.rollout.sync import WeightReceiver, WeightSyncError
from saki.types import Prompt, RolloutBatch, RolloutRequest
from saki.types.batch import TENSOR_FIELDS

Arrays = dict[str, np.ndarray[Any, Any]]
"""Tensors between processes, by name of field."""

Packed = tuple[Arrays, dict[str, Any]]
"""A batch between processes: its tensors as arrays, and the rest."""


@dataclass(frozen=True)
class ReplicaModels:
    """What a replica loads by itself: names of folders, never modules.

    Attributes:
        student: The draft model; its weights count until the first sync. Device ``auto`` is the replica's own.
        teacher: The fixed teacher, loaded once; None for student-only rollouts without scores.
        stop_token_ids: Ids that end a completion.
        batch_rows: Rows that roll out together.
        threads: Threads on a CPU.
        options: Further options of :class:`saki.rollout.ResidentEngine`.
        student_version: Version of the student's weights as loaded.
    """

    student: ServedModel
    teacher: ServedModel | None
    stop_token_ids: tuple[int, ...]
    batch_rows: int
    threads: int
    options: dict[str, Any]
    student_version: int = 0


@dataclass(frozen=True)
class ReplicaFacts:
    """What the driver must know of a replica.

    Attributes:
        vocab_size: Real ids.
        max_positions: Longest sequence that both models take, or None.
        table: Shape and dtype of each of the student's tensors.
        student_checksum: Of the student as loaded.
        teacher_checksum: Of the teacher, or None.
        student_version: Of the student as loaded.
        device: Where the models run.
        host: Name of the machine.
        pid: Process id there.
    """

    vocab_size: int
    max_positions: int | None
    table: Table
    student_checksum: str
    teacher_checksum: str | None
    student_version: int
    device: str
    host: str
    pid: int


class Replica:
    """What a pool asks of a process. Every call but :meth:`pulse` is answered before the next one begins.

    Args:
        models: What to load.
    """

    def __init__(self, models: ReplicaModels) -> None:
        self._models = models
        self._beats = 0
        self._lock = threading.Lock()
        self._next_bucket = 0

    def load(self) -> ReplicaFacts:
        """Load both models.

        Raises:
            ValueError: If one cannot be loaded or they do not fit each other.
        """
        self._begin()
        models = self._models
        student = self._decoder(models.student)
        teacher = None if models.teacher is None else self._decoder(models.teacher)
        student.version = models.student_version
        self._student, self._receiver = student, WeightReceiver(student)
        self._engine = ResidentEngine(
            student, teacher, models.stop_token_ids, max_batch_rows=models.batch_rows, **models.options
        )
        return ReplicaFacts(
            vocab_size=student.vocab_size,
            max_positions=self._engine.max_positions,
            table={name: (tuple(tensor.shape), tensor.dtype) for name, tensor in student.named_tensors()},
            student_checksum=self._engine.student_checksum(),
            teacher_checksum=self._engine.teacher_checksum(),
            student_version=models.student_version,
            device=str(student.device),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def generate(self, prompts: Sequence[Prompt], request: RolloutRequest) -> tuple[Packed, EngineStats]:
        """Roll out one unit; the batch and what it took."""
        self._begin()
        before = self._engine.stats()
        batch = self._engine.generate(prompts, request)
        return pack_batch(batch), difference(self._engine.stats(), before)

    def score(self, packed: Packed, model: Literal["student", "teacher"]) -> tuple[Arrays, EngineStats]:
        """Score one group of rows; the fields of the scores as arrays, and what it took."""
        self._begin()
        before = self._engine.stats()
        scores = self._engine.score(unpack_batch(packed), model)
        arrays = {entry.name: getattr(scores, entry.name).numpy() for entry in fields(scores)}
        return arrays, difference(self._engine.stats(), before)

    def begin_sync(self, version: int) -> None:
        """Start a weight sync; until it is finished the replica refuses to generate."""
        self._begin()
        self._receiver.begin(version)
        self._next_bucket = 0

    def add_bucket(self, bucket: Bucket) -> None:
        """Check a bucket and copy it in.

        Raises:
            ChecksumMismatchError: If a bit changed on the way; nothing of the bucket was copied, so it can come again.
            WeightSyncError: If a bucket is left out, or something in it does not fit.
        """
        self._begin()
        if bucket.index != self._next_bucket:
            raise WeightSyncError(f"bucket {bucket.index} came where {self._next_bucket} was due; begin the sync again")
        for piece in open_bucket(bucket, self._student.device):
            self._receiver.add(piece)
        self._next_bucket += 1

    def finish_sync(self, checksum: str) -> tuple[SyncReport, str | None]:
        """Close a sync whose weights have this checksum; what was done, and the teacher's checksum."""
        self._begin()
        return self._receiver.finish(checksum), self._engine.teacher_checksum()

    def checksums(self) -> tuple[str, str | None]:
        """Checksums of student and teacher, taken now."""
        self._begin()
        return self._engine.student_checksum(), self._engine.teacher_checksum()

    def pulse(self) -> int:
        """A number that grows with every forward; asked from another thread while something else runs."""
        return self._beats

    def _begin(self) -> None:
        """Every call is a sign of life, and the number of threads belongs to the thread that calls."""
        self._beat()
        if torch.get_num_threads() != self._models.threads:
            torch.set_num_threads(self._models.threads)

    def _beat(self) -> None:
        with self._lock:
            self._beats += 1

    def _decoder(self, source: ServedModel) -> Decoder:
        device = source.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        decoder = load_decoder({**asdict(replace(source, device=device)), "arguments": dict(source.arguments)})
        forward = decoder.forward

        def beating(*args: Any, **kwargs: Any) -> torch.Tensor:
            self._beat()
            return forward(*args, **kwargs)

        setattr(decoder, "forward", beating)  # noqa: B010 - the decoder is this replica's own
        return decoder


def pack_batch(batch: RolloutBatch) -> Packed:
    """A batch as arrays and plain values."""
    rest = {entry.name for entry in fields(batch)} - set(TENSOR_FIELDS)
    arrays = {name: getattr(batch, name).numpy() for name in TENSOR_FIELDS}
    return arrays, {name: getattr(batch, name) for name in rest}


def unpack_batch(packed: Packed) -> RolloutBatch:
    """The batch of :func:`pack_batch`; it shares no memory with the arrays, which may lie in shared memory."""
    arrays, rest = packed
    values: dict[str, Any] = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return RolloutBatch(**values, **rest)


def unpack_scores(arrays: Arrays) -> ScoreResult:
    """Scores from :meth:`Replica.score`, without shared memory, as :func:`unpack_batch`."""
    return ScoreResult(**{name: torch.from_numpy(array.copy()) for name, array in arrays.items()})


def difference(after: EngineStats, before: EngineStats) -> EngineStats:
    """What was counted in between."""
    numbers = {
        entry.name: getattr(after, entry.name) - getattr(before, entry.name)
        for entry in fields(EngineStats)
        if entry.name != "seconds"
    }
    return EngineStats(
        **numbers, seconds={name: value - before.seconds.get(name, 0.0) for name, value in after.seconds.items()}
    )
