"""The paper's external loop as a baseline: student and teacher in processes of their own (Appendix K.2, Eq. 82)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from saki.rollout.external_client import RemoteDecoder
from saki.rollout.external_errors import ClosedLoopError, ExternalError
from saki.rollout.external_process import ServedModel, ServerProcess
from saki.rollout.external_stats import ExternalStats, Ledger
from saki.rollout.external_unit import ExternalUnit
from saki.rollout.external_wire import Channel
from saki.rollout.protocol import EngineStats, ProgressCallback, ScoreResult, SyncReport
from saki.rollout.resident import ResidentEngine
from saki.rollout.unit import WorkUnit
from saki.types import Prompt, RolloutBatch, RolloutRequest

_T = TypeVar("_T")


class ExternalLoop:
    """Exact-q rollout with the models behind a binary RPC on the loopback (a :class:`saki.rollout.RolloutEngine`).

    Each wave asks the student's server for K proposals with their dense log-probs and the teacher's server for its
    log-probs at the same prefixes; this process builds q, couples and commits. Tokens and metadata are those of
    :class:`saki.rollout.ResidentEngine`; only the cost differs. The servers keep the key-value caches, roll back by
    start positions and recompute no prefix.

    Args:
        student: Model that drafts.
        teacher: Model that verifies and scores. None allows student-only rollouts without scores.
        stop_token_ids: Ids that end a completion.
        token_wise: The paper's first prototype: one row at a time and one token a request (K = 1), whatever the
            request's block size.
        max_batch_rows: Most rows in one request.
        prefill_chunk: Prompt positions per prefill request.
        request_timeout: Seconds after which a request is given up.
        start_timeout: Seconds that a server may take to load its model.

    Raises:
        ExternalError: If a server does not start. Whenever one reaches the caller, here or later, both servers have
            been ended and the loop is closed.
        ValueError: If the two vocabularies differ or a limit is below 1.

    Example:
        >>> loop = ExternalLoop(ServedModel("student", 49152), ServedModel("teacher", 49152), [2])  # doctest: +SKIP
    """

    def __init__(
        self,
        student: ServedModel,
        teacher: ServedModel | None,
        stop_token_ids: Sequence[int],
        *,
        token_wise: bool = False,
        max_batch_rows: int = 64,
        prefill_chunk: int = 512,
        request_timeout: float = 300.0,
        start_timeout: float = 600.0,
    ) -> None:
        self._token_wise, self._ledger = token_wise, Ledger()
        self._processes: list[ServerProcess] = []
        self._channels: list[Channel] = []
        self._release = weakref.finalize(self, _release, self._processes, self._channels)
        try:
            # Both load at the same time.
            for source, name in ((student, "student server"), (teacher, "teacher server")):
                if source is not None:
                    self._processes.append(ServerProcess(source, name))
            decoders = [self._connect(process, start_timeout, request_timeout) for process in self._processes]
            self._student, self._teacher = decoders[0], decoders[1] if teacher is not None else None
            self._coordinator = _Coordinator(
                self._student,
                self._teacher,
                stop_token_ids,
                max_batch_rows=1 if token_wise else max_batch_rows,
                prefill_chunk=prefill_chunk,
            )
        except BaseException:
            self._release()
            raise

    def _connect(self, process: ServerProcess, start_timeout: float, request_timeout: float) -> RemoteDecoder:
        channel = Channel(process.connect(start_timeout), process.name)
        self._channels.append(channel)
        return RemoteDecoder(channel, process.token, self._ledger, request_timeout, process)

    @property
    def server_pids(self) -> tuple[int, ...]:
        """Process ids of the servers, student first; empty once closed."""
        return tuple(process.pid for process in self._processes)

    def generate(
        self, prompts: Sequence[Prompt], request: RolloutRequest, progress: ProgressCallback | None = None
    ) -> RolloutBatch:
        """Roll out every sample of every prompt; see :meth:`saki.rollout.ResidentEngine.generate`.

        Raises:
            ExternalError: If a server or a connection fails; the loop is closed then.
            ValueError: If a prompt does not fit the models, or the request needs a teacher that is not there.
        """
        if self._token_wise:
            request = replace(request, block_size=1)
        return self._guarded(lambda: self._coordinator.generate(prompts, request, progress))

    def score(self, batch: RolloutBatch, model: Literal["student", "teacher"] = "teacher") -> ScoreResult:
        """Log-probs and modes of the committed tokens under one of the models; their logits cross the wire."""
        return self._guarded(lambda: self._coordinator.score(batch, model))

    def sync_student(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """Stream weights into the student's server; see :func:`saki.rollout.sync.sync_decoder`."""
        return self._guarded(lambda: self._student.sync(weights, version))

    def student_checksum(self) -> str:
        """Checksum of the student tensors that draft, taken in the server."""
        return self._guarded(lambda: self._student.checksum())

    def teacher_checksum(self) -> str | None:
        """Checksum of the teacher tensors, taken in the server, or None without a teacher."""
        teacher = self._teacher
        return self._guarded(teacher.checksum) if teacher is not None else None

    def stats(self) -> ExternalStats:
        """Counters since the loop was made (a copy)."""
        base = self._coordinator.stats()
        return ExternalStats(
            **{entry.name: getattr(base, entry.name) for entry in fields(EngineStats)},
            bytes_sent=sum(channel.bytes_sent for channel in self._channels),
            bytes_received=sum(channel.bytes_received for channel in self._channels),
            requests=self._ledger.requests,
            request_seconds=dict(self._ledger.seconds),
            wave_ratios=tuple(self._ledger.wave_ratios),
        )

    def close(self) -> None:
        """End both servers and close the connections; again is harmless."""
        self._release()

    def _guarded(self, action: Callable[[], _T]) -> _T:
        """Run something that uses the connections. What breaks them, or leaves them within a frame, closes the loop."""
        if not self._release.alive:
            raise ClosedLoopError("the external loop is closed; make a new one")
        try:
            return action()
        except (ExternalError, KeyboardInterrupt):
            self._release()
            raise


class _Coordinator(ResidentEngine):
    """Schedules as the resident engine does; its decoders are remote."""

    unit_type: ClassVar[type[WorkUnit]] = ExternalUnit


def _release(processes: list[ServerProcess], channels: list[Channel]) -> None:
    for channel in channels:
        channel.close()
    for process in processes:
        process.close()
    processes.clear()
