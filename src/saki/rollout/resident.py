"""The default engine: student and teacher resident in one process, K proposals verified a wave (3.5, K.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from saki.rollout.block_size import BlockSizer
from saki.rollout.clock import PhaseClock
from saki.rollout.decoder import HALF_SYNCED, Decoder, HalfSyncedError
from saki.rollout.memory import with_half_until_it_fits
from saki.rollout.protocol import EngineStats, ProgressCallback, ScoreResult, SyncReport
from saki.rollout.rows import Row, check_request, expand_rows, row_slots
from saki.rollout.scoring import join_scores, score_rows, with_teacher_scores
from saki.rollout.sync import model_checksum, sync_decoder
from saki.rollout.unit import WorkUnit
from saki.types import Prompt, RolloutBatch, RolloutRequest


class ResidentEngine:
    """Speculative exact-q rollout in one process (a :class:`saki.rollout.protocol.RolloutEngine`).

    A wave drafts up to K tokens with the student, verifies them in one teacher forward, and commits through
    the first rejection. The sampled law is that of token-wise maximal coupling; tokens depend on the request,
    the prompts and the weights, not on the block size or the batch.

    Args:
        student: Decoder that drafts. The engine owns it.
        teacher: Decoder that verifies and scores, in a dtype and on a device of its own. None allows student-only
            rollouts without scores.
        stop_token_ids: Ids that end a completion; a committed one is its last valid position.
        max_batch_rows: Most rows that roll out together; a row that ends makes room for the next. When memory runs out
            the request begins again with half as many, and so do later ones; a warning says so.
        prefill_chunk: Prompt positions per prefill forward.
        refill: Whether freed slots are refilled at once (continuous batching); off, rows go in fixed groups.
        compiled: Whether decoding forwards and the bridge's passes over float32 rows are fused by ``torch.compile``;
            worth its start-up of a minute for long runs. It needs a C++ compiler on a CPU and Triton on a GPU.
        adaptive_block_size: Whether K follows the acceptance seen so far, up to the request's ``block_size``; the
            sampled law is the same.
        kv_budget_bytes: Most bytes that the key-value slabs of both models may take; fewer rows run at once if they
            would take more.

    Raises:
        ValueError: If the two models' vocabularies differ or a limit is below 1.

    Attributes:
        unit_type: What runs a unit of rows. A hook for tests alone: they put deliberate bugs here and expect
            the law tests and ``saki verify`` to catch them.
    """

    unit_type: ClassVar[type[WorkUnit]] = WorkUnit

    def __init__(
        self,
        student: Decoder,
        teacher: Decoder | None,
        stop_token_ids: Sequence[int],
        *,
        max_batch_rows: int = 64,
        prefill_chunk: int = 512,
        refill: bool = True,
        compiled: bool = False,
        adaptive_block_size: bool = False,
        kv_budget_bytes: int | None = None,
    ) -> None:
        if teacher is not None and teacher.vocab_size != student.vocab_size:
            raise ValueError(
                f"student and teacher must share a vocabulary, got {student.vocab_size} and {teacher.vocab_size} ids"
            )
        if max_batch_rows < 1 or prefill_chunk < 1:
            raise ValueError(
                f"max_batch_rows and prefill_chunk must be at least 1, got {max_batch_rows} and {prefill_chunk}"
            )
        self._student, self._teacher = student, teacher
        self._stop_ids = torch.tensor(sorted(set(stop_token_ids)), dtype=torch.long, device=student.device)
        self._max_batch_rows, self._prefill_chunk, self._refill = max_batch_rows, prefill_chunk, refill
        self._compiled, self._kv_budget_bytes = compiled, kv_budget_bytes
        self._teacher_weight: float | None = None
        if adaptive_block_size and teacher is not None:
            self._teacher_weight = _num_parameters(teacher) / _num_parameters(student)
        self._stats, self._clock = EngineStats(), PhaseClock()
        for decoder in (student, teacher):
            if compiled and decoder is not None:
                decoder.compile()

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that all models take (tokens), or None where none has a limit."""
        limits = [d.max_positions for d in (self._student, self._teacher) if d is not None and d.max_positions]
        return min(limits, default=None)

    def generate(
        self, prompts: Sequence[Prompt], request: RolloutRequest, progress: ProgressCallback | None = None
    ) -> RolloutBatch:
        """Roll out every sample of every prompt.

        Args:
            prompts: Rendered prompts.
            request: What to sample; see :class:`RolloutRequest`.
            progress: Called with (rows finished, rows in all).

        Returns:
            The batch, rows prompt-major. On the student-only path the teacher is asked once for scores, after
            the rollout, if the request wants them.

        Raises:
            ValueError: If a prompt does not fit the models, or the request needs a teacher that is not there.
            HalfSyncedError: If the last weight sync was not finished.
        """
        check_request(prompts, request, self._student.vocab_size, self.max_positions)
        if self._teacher is None and (not request.student_only or request.score_teacher):
            raise ValueError(
                "this engine has no teacher; ask for behavior='student' with score_teacher=False, or give it one"
            )
        if self._student.version == HALF_SYNCED:
            raise HalfSyncedError("the last weight sync was not finished; sync again before the next rollout")
        rows = expand_rows(prompts, request.num_generations)
        told = 0

        def attempt(slots: int) -> RolloutBatch:
            finished = 0

            def on_finished(count: int) -> None:
                nonlocal finished, told
                finished += count
                if progress is not None and finished > told:  # an attempt that ran out of memory may have told more
                    told = finished
                    progress(finished, len(rows))

            unit = self.unit_type(
                self._student,
                self._teacher,
                self._stop_ids,
                rows,
                request,
                self._stats,
                self._clock,
                self._prefill_chunk,
                slots,
                self._refill,
                self._compiled,
                self._block_sizer(request),
            )
            return unit.run(on_finished)

        slots = min(self._num_slots(rows, request), len(rows))
        batch = with_half_until_it_fits(f"a rollout of {len(rows)} rows", slots, attempt, self._admit_at_most)
        if request.student_only and request.score_teacher:
            return with_teacher_scores(batch, self.score(batch))
        return batch

    def _admit_at_most(self, rows: int) -> None:
        """Remember that memory ran out with more rows at once."""
        self._max_batch_rows = rows
        self._stats.halvings += 1

    def _block_sizer(self, request: RolloutRequest) -> BlockSizer | None:
        if self._teacher_weight is None or request.student_only:
            return None
        return BlockSizer(request.block_size, self._teacher_weight, self._student.device.type)

    def _num_slots(self, rows: Sequence[Row], request: RolloutRequest) -> int:
        """Rows that run at once: ``max_batch_rows``, or as many as the budget has room for.

        Raises:
            ValueError: If there is no room for one.
        """
        if self._kv_budget_bytes is None:
            return self._max_batch_rows
        teacher = None if request.student_only else self._teacher
        slots = row_slots(rows, request)
        each = sum(decoder.cache_bytes(slots) for decoder in (self._student, teacher) if decoder is not None)
        room = self._kv_budget_bytes // each
        if room < 1:
            raise ValueError(
                f"one row of {slots} positions needs {each} bytes of key-value slabs, kv_budget_bytes is "
                f"{self._kv_budget_bytes}; free memory, raise it, or ask for shorter completions"
            )
        return min(self._max_batch_rows, room)

    def score(self, batch: RolloutBatch, model: Literal["student", "teacher"] = "teacher") -> ScoreResult:
        """Log-probs and modes of the committed tokens under one of the models.

        Raises:
            ValueError: If the engine has no such model.
        """
        decoder = self._student if model == "student" else self._teacher
        if decoder is None:
            raise ValueError("this engine has no teacher to score with")

        def attempt(rows_at_once: int) -> list[ScoreResult]:
            parts = []
            for begin in range(0, len(batch), rows_at_once):
                part, forwards = score_rows(decoder, batch.select(range(len(batch))[begin : begin + rows_at_once]))
                parts.append(part)
                if model == "teacher":
                    self._stats.teacher_score_forwards += forwards
                else:
                    self._stats.student_forwards += forwards
            return parts

        with self._clock.phase("score"):
            rows = min(self._max_batch_rows, len(batch))
            if self._kv_budget_bytes is not None:
                slots = int((batch.prompt_mask.sum(dim=1) + batch.lengths).max())
                rows = min(rows, max(1, self._kv_budget_bytes // decoder.cache_bytes(slots)))
            parts = with_half_until_it_fits(f"scoring {len(batch)} rows", rows, attempt, self._admit_at_most)
        return join_scores(parts, batch.student_logprobs)

    def sync_student(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """Replace the student's weights; see :func:`saki.rollout.sync.sync_decoder`."""
        return sync_decoder(self._student, weights, version)

    def student_checksum(self) -> str:
        """Checksum of the student tensors that draft."""
        return model_checksum(self._student.named_tensors())

    def teacher_checksum(self) -> str | None:
        """Checksum of the teacher tensors, or None without a teacher."""
        return model_checksum(self._teacher.named_tensors()) if self._teacher is not None else None

    def stats(self) -> EngineStats:
        """Counters since the engine was made (a copy)."""
        return replace(self._stats, seconds=dict(self._clock.seconds))

    def close(self) -> None:
        """Drop counters and let go of the models' device memory at the next collection."""
        if self._student.device.type == "cuda":
            torch.cuda.empty_cache()


def _num_parameters(decoder: Decoder) -> int:
    return sum(tensor.numel() for _, tensor in decoder.named_tensors())
