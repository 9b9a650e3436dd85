"""Many resident replicas behind one engine: fixed units, weights in buckets, failures replaced (Appendix K.4)."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from saki.rollout.pool.buckets import Bucket, cut_buckets
from saki.rollout.pool.errors import ClosedPoolError, PoolError
from saki.rollout.pool.fleet import Fleet, Host, Script, Seat, Task
from saki.rollout.pool.replica import ReplicaFacts, pack_batch, unpack_batch, unpack_scores
from saki.rollout.pool.settings import PoolSettings
from saki.rollout.pool.spool import Spool
from saki.rollout.pool.stats import PoolStats
from saki.rollout.pool.units import LengthForecast, cut_units, join_units
from saki.rollout.protocol import EngineStats, ProgressCallback, ScoreResult, SyncReport
from saki.rollout.rows import check_request
from saki.rollout.scoring import join_scores
from saki.rollout.sync import ChecksumMismatchError, ModelDigest
from saki.types import Prompt, RolloutBatch, RolloutRequest

logger = logging.getLogger(__name__)

SENDINGS = 3
"""Times that one bucket is sent to a replica before the way to it counts as broken."""


class EnginePool:
    """Resident replicas as one :class:`saki.rollout.RolloutEngine`.

    A request is cut into fixed units before any of them is dispatched, and a unit's result depends on the unit alone.
    Any number of replicas, any order and any failure therefore give the same bits on one kind of device with one
    number of threads; the exception is a replica that ran out of memory and went on with fewer rows at once, which
    is logged.

    Args:
        host: Makes the replicas; :func:`saki.rollout.pool.ray_pool` makes a pool whose replicas are Ray actors.
        settings: See :class:`PoolSettings`.
        clock: Seconds, for deadlines.

    Raises:
        ValueError: If a replica cannot load its models.
        PoolError: If replicas fail more often than the settings bear, or do not hold the same models.
    """

    def __init__(self, host: Host, settings: PoolSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._host = host
        self._temporary = None if settings.spool is not None else tempfile.mkdtemp(prefix="saki-pool-")
        self._facts: ReplicaFacts | None = None
        self._version = -1
        self._checksum = ""
        self._torn = self._told_of_few_units = False
        self._stats, self._forecast = PoolStats(), LengthForecast()
        self._reports: list[SyncReport] = []
        self._fleet = Fleet(host, settings, self._load, self._catch_up, lambda: self._version, clock)
        self._release = weakref.finalize(self, _release, self._fleet, self._temporary)
        try:
            self._spool = Spool(Path(self._temporary or str(settings.spool)))
            self._fleet.start()
        except BaseException:
            self._release()
            raise

    # ---- rollouts ------------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Sequence[Prompt], request: RolloutRequest, progress: ProgressCallback | None = None
    ) -> RolloutBatch:
        """Roll out every sample of every prompt; see :meth:`saki.rollout.ResidentEngine.generate`.

        Raises:
            ValueError: If a prompt does not fit the models, or the request needs a teacher that is not there.
            PoolError: If the last sync failed, or replicas fail too often; the pool is closed in the second case.
        """
        self._check_open()
        facts = self.facts
        check_request(prompts, request, facts.vocab_size, facts.max_positions)
        if facts.teacher_checksum is None and (not request.student_only or request.score_teacher):
            raise ValueError(
                "this engine has no teacher; ask for behavior='student' with score_teacher=False, or give it one"
            )
        units = cut_units(prompts, request, self.settings.unit_rows)
        total, finished = sum(map(len, units)), 0
        if len(units) < self.settings.replicas and not self._told_of_few_units:
            self._told_of_few_units = True
            logger.warning(
                "a request of %d rows makes %d units, but there are %d replicas, so some have nothing to do; lower "
                "unit_rows, now %d",
                total,
                len(units),
                self.settings.replicas,
                self.settings.unit_rows,
            )
        batches: dict[int, RolloutBatch] = {}

        def task(index: int) -> Task:
            unit = units[index]

            def script(seat: Seat) -> Script:
                packed, stats = yield "generate", (unit.prompts, request)
                batches[index] = unpack_batch(packed)
                self._stats.add(stats)
                self._tell_halvings(seat, stats)
                self._stats.units += 1

            def done() -> None:
                nonlocal finished
                finished += len(unit)
                if progress is not None:
                    progress(finished, total)

            return Task(script, f"unit {index + 1} of {len(units)}", done)

        self._run([task(index) for index in self._forecast.longest_first(units, request)])
        batch = join_units(units, [batches[index] for index in range(len(units))])
        self._forecast.observe(batch)
        return batch

    def score(self, batch: RolloutBatch, model: Literal["student", "teacher"] = "teacher") -> ScoreResult:
        """Log-probs and modes of the committed tokens under one of the models, in groups of ``unit_rows`` rows.

        Raises:
            ValueError: If there is no such model.
            PoolError: As :meth:`generate`.
        """
        self._check_open()
        if model == "teacher" and self.facts.teacher_checksum is None:
            raise ValueError("this engine has no teacher to score with")
        groups = torch.arange(len(batch)).split(self.settings.unit_rows)
        parts: dict[int, ScoreResult] = {}

        def task(index: int) -> Task:
            def script(seat: Seat) -> Script:
                packed = pack_batch(batch.select(groups[index]))
                scores, stats = yield "score", (packed, model)
                parts[index] = unpack_scores(scores)
                self._stats.add(stats)
                self._tell_halvings(seat, stats)

            return Task(script, f"group {index + 1} of {len(groups)} to score")

        self._run([task(index) for index in range(len(groups))])
        return join_scores([parts[index] for index in range(len(groups))], batch.student_logprobs)

    def _run(self, tasks: Sequence[Task]) -> None:
        with self._closing_on_pool_errors():
            self._fleet.run(tasks)

    # ---- weights -------------------------------------------------------------------------------------------------

    def sync_student(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """Send every replica the same weights, bucket by bucket, and keep them for those that are replaced later.

        A replica lost on the way drops out and gets them from the spool. After an error every replica refuses to
        generate until a sync is complete.

        Args:
            weights: (name, tensor) under the student's own names, each once.
            version: New version, at least 0.

        Returns:
            What was done, by the first replica to finish; all hold the same checksum.

        Raises:
            WeightSyncError: If a name is unknown, missing or comes twice, or a shape differs.
            PoolError: If a teacher has changed, or replicas fail too often; the pool is closed.
            DiskFullError: If there is no room for the spool.
        """
        self._check_open(allow_torn=True)
        if version < 0:
            raise ValueError(f"the version of weights must be at least 0, got {version}")
        begin = time.perf_counter()
        digest, num_bytes = ModelDigest(), 0
        with self._closing_on_pool_errors():
            self._torn = True
            self._spool.begin(self.facts.table)
            taking = self._fleet.free_seats()
            self._to_each(taking, lambda seat: _one_call("begin_sync", version))
            for bucket in cut_buckets(weights, self.facts.table, self.settings.bucket_bytes, digest):
                self._spool.add(bucket)
                shared = self._host.share(bucket)
                self._to_each(taking, lambda seat, shared=shared: self._send(shared))  # type: ignore[misc]
                num_bytes += sum(entry.count * _itemsize(entry.dtype) for entry in bucket.entries)
            self._spool.finish()
            self._version, self._checksum = version, digest.hexdigest()
            self._reports.clear()
            self._to_each(taking, lambda seat: self._finish(seat, self._checksum))
            self._torn = False
            if not self._reports:  # nobody was left; the next to be ready gets the weights from the spool
                self._fleet.wait_until_idle(one=True)
        seconds = time.perf_counter() - begin
        self._stats.sync_bytes += num_bytes
        self._stats.sync_seconds += seconds
        logger.debug(  # the trainer logs both figures with every step
            "weights of version %d: %.1f MB to %d replicas in %.2f s", version, num_bytes / 1e6, len(taking), seconds
        )
        return replace(self._reports[0], seconds=seconds, num_bytes=num_bytes)

    def _to_each(self, taking: Sequence[Seat], script: Callable[[Seat], Script]) -> None:
        """Run a script on those seats whose replica has been there from the beginning of the sync."""
        present = [seat for seat in taking if seat in self._fleet.seats]
        for seat in present:
            seat.version = None
        self._fleet.each(script, present)

    def _send(self, bucket: Any) -> Script:
        """Give a replica a bucket, again if it arrives damaged.

        Raises:
            ChecksumMismatchError: If it arrives damaged every time.
        """
        for sending in range(SENDINGS):
            try:
                yield "add_bucket", (bucket,)
                return
            except ChecksumMismatchError as error:
                logger.warning("%s; it is sent again", error)
                self._stats.resent_buckets += 1
                if sending == SENDINGS - 1:
                    raise

    def _finish(self, seat: Seat, checksum: str) -> Script:
        """Close a replica's sync, and compare both models with what they must be."""
        report, teacher = yield "finish_sync", (checksum,)
        if teacher != self.facts.teacher_checksum:
            raise PoolError(f"the teacher of {seat.name} changed to checksum {teacher} since it was loaded")
        seat.version = report.version
        if report.version == self._version:
            self._reports.append(report)

    def _load(self, seat: Seat) -> Script:
        """A new replica loads its models, and must hold those of the others."""
        facts: ReplicaFacts = yield "load", ()
        first = self._facts = self._facts or facts
        if not self._checksum:
            self._version, self._checksum = facts.student_version, facts.student_checksum
        if facts.teacher_checksum != first.teacher_checksum or facts.student_checksum != first.student_checksum:
            raise PoolError(
                f"{seat.name} on {facts.host} loaded other models than the first on {first.host}; the folders must "
                "hold the same files on every machine"
            )
        present = (facts.student_version, facts.student_checksum) == (self._version, self._checksum)
        seat.loaded, seat.version = True, facts.student_version if present else None

    def _catch_up(self, seat: Seat) -> Script:
        """A replica gets the weights of the present version from the spool."""
        version, checksum = self._version, self._checksum
        yield "begin_sync", (version,)
        for bucket in self._spooled(checksum):
            yield from self._send(self._host.share(bucket))
        yield from self._finish(seat, checksum)

    def _spooled(self, checksum: str) -> Iterator[Bucket]:
        digest = ModelDigest()
        yield from cut_buckets(self._spool.weights(), self.facts.table, self.settings.bucket_bytes, digest)
        if digest.hexdigest() != checksum:
            raise PoolError(
                f"the spooled weights have checksum {digest.hexdigest()}, synced was {checksum}; the disk is damaged"
            )

    # ---- the rest ------------------------------------------------------------------------------------------------

    def student_checksum(self) -> str:
        """Checksum of the student tensors that draft, taken in every replica now.

        Raises:
            PoolError: If replicas differ.
        """
        return str(self._checksums()[0])

    def teacher_checksum(self) -> str | None:
        """Checksum of the teacher tensors, taken in every replica now, or None without a teacher.

        Raises:
            PoolError: If replicas differ.
        """
        return self._checksums()[1]

    def _checksums(self) -> tuple[str, str | None]:
        self._check_open()
        found: set[tuple[str, str | None]] = set()

        def script(seat: Seat) -> Script:
            found.add((yield "checksums", ()))

        with self._closing_on_pool_errors():
            self._fleet.wait_until_idle()
            self._fleet.each(script, self._fleet.free_seats())
            if not found:  # all failed while they were asked
                return self._checksums()
            if len(found) > 1:
                raise PoolError(f"the replicas hold different weights: {sorted(map(str, found))}")
        return found.pop()

    def stats(self) -> PoolStats:
        """Counters since the pool was made (a copy)."""
        counts = self._fleet.counts
        return self._stats.told(self.settings.replicas, counts.failures, counts.causes)

    @property
    def facts(self) -> ReplicaFacts:
        """What the first replica said of itself; the others hold the same models."""
        assert self._facts is not None
        return self._facts

    def close(self) -> None:
        """End the replicas and remove the spool; again is harmless."""
        if self._release.alive:
            self._spool.close()
        self._release()

    @staticmethod
    def _tell_halvings(seat: Seat, stats: EngineStats) -> None:
        if stats.halvings:
            logger.warning(
                "%s ran out of memory and halved the rows at once %d times; its results are no longer the same to the "
                "bit: lower unit_rows",
                seat.name,
                stats.halvings,
            )

    def _check_open(self, *, allow_torn: bool = False) -> None:
        if not self._release.alive:
            raise ClosedPoolError("the pool is closed; make a new one")
        if self._torn and not allow_torn:
            raise PoolError("the last weight sync was not finished; sync again before the next rollout")

    def _closing_on_pool_errors(self) -> _ClosingOn:
        return _ClosingOn(self.close)


class _ClosingOn:
    """Closes the pool when it cannot go on."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PoolError):
            self._close()


def _one_call(call: str, *arguments: Any) -> Script:
    yield call, arguments


def _itemsize(dtype: str) -> int:
    size: int = getattr(torch, dtype).itemsize
    return size


def _release(fleet: Fleet, temporary: str | None) -> None:
    fleet.close()
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
