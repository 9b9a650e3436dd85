"""One work unit: a fixed group of rows rolled out together, from prompt to last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from saki.functional import RowKeys, draw_proposals, normalized_log_probs, proposal_uniforms
from saki.rollout.clock import PhaseClock
from saki.rollout.decoder import Decoder
from saki.rollout.protocol import EngineStats
from saki.rollout.recorder import RolloutRecorder
from saki.rollout.rows import Row, padded_prompts, row_keys
from saki.rollout.skd import verify_requested
from saki.rollout.verifier import VerifiedBlock, take
from saki.types import RolloutBatch, RolloutRequest

COMPACT_BELOW = 0.75
"""Caches are compacted when fewer than this share of their rows still run."""


NOISE_AHEAD = 8
"""Positions whose random numbers the student-only path makes at once."""


class WorkUnit:
    """Runs the rows of one unit.

    Student and teacher caches hold the same n - 1 entries of a row with n tokens; the last token is pending.
    One ``starts`` therefore serves both, and no catch-up forward is needed after a wave, whatever it committed.

    Args:
        student: Decoder that drafts.
        teacher: Decoder that verifies; None on the student-only path.
        stop_ids: [S] int64, ids that end a row.
        rows: The unit's rows.
        request: The request served.
        stats: Counters to add to.
        clock: Phases to charge.
        prefill_chunk: Prompt positions per prefill forward.
    """

    def __init__(
        self,
        student: Decoder,
        teacher: Decoder | None,
        stop_ids: Tensor,
        rows: Sequence[Row],
        request: RolloutRequest,
        stats: EngineStats,
        clock: PhaseClock,
        prefill_chunk: int,
    ) -> None:
        self.student, self.request, self.stop_ids = student, request, stop_ids
        self.teacher = None if request.student_only else teacher
        self.stats, self.clock = stats, clock
        device = student.device
        float_dtype = torch.float64 if student.dtype == torch.float64 else torch.float32
        self.recorder = RolloutRecorder(rows, request, student.version, float_dtype, device)
        self.row_ids = torch.arange(len(rows), device=device)
        self.alive = torch.ones(len(rows), dtype=torch.bool, device=device)
        self.keys: RowKeys = row_keys(rows, request, device)
        self._noise: Tensor | None = None
        self._noise_used = 0
        prompt_ids, prompt_lengths = padded_prompts(rows, device)
        self.starts = prompt_lengths - 1
        self.pending = take(prompt_ids, self.starts)
        slots = prompt_ids.shape[1] + request.max_completion_length + request.block_size
        self.student_cache = student.new_cache(len(rows), slots)
        self.teacher_cache = self.teacher.new_cache(len(rows), slots) if self.teacher else None
        with clock.phase("prefill"):
            self._prefill(prompt_ids[:, :-1], prefill_chunk)

    def run(self, on_finished: Callable[[int], None]) -> RolloutBatch:
        """Roll every row out; ``on_finished`` hears how many rows ended after each round."""
        while bool(self.alive.any()):
            running = int(self.alive.sum())
            if self.teacher is None:
                self._student_step()
            else:
                self._wave(self.teacher)
            on_finished(running - int(self.alive.sum()))
            self._compact()
        self.stats.committed_tokens += int(self.recorder.lengths.sum())
        return self.recorder.batch()

    def _prefill(self, token_ids: Tensor, chunk: int) -> None:
        """Fill the caches with all prompt tokens but the last; right padding lands above ``starts``."""
        for begin in range(0, token_ids.shape[1], chunk):
            piece = token_ids[:, begin : begin + chunk]
            starts = torch.full_like(self.starts, begin)
            self._student_forward(piece, starts, num_logits=1)
            if self.teacher is not None:
                self._teacher_forward(self.teacher, piece, starts, num_logits=1)

    def _student_step(self) -> None:
        """One token from the student alone, for every row."""
        with self.clock.phase("draft"):
            log_p, tokens = self._draft(self.pending, 0, self._student_noise())
        with self.clock.phase("rest"):
            broken = torch.isnan(log_p[:, 0])
            one = torch.ones_like(tokens, dtype=log_p.dtype).unsqueeze(1)
            log_p_y = take(log_p, tokens).unsqueeze(1)
            ids = tokens.unsqueeze(1)
            self._commit(
                (~broken).long(),
                broken,
                ids,
                proposal_ids=ids,
                correction_mask=torch.zeros_like(ids, dtype=torch.bool),
                student_logprobs=log_p_y,
                behavior_logprobs=log_p_y,
                beta=0 * one,
                kl=0 * one,
                tv=0 * one,
                acceptance_probability=one,
            )

    def _wave(self, teacher: Decoder) -> None:
        """Draft up to K proposals, verify them in one teacher forward, commit through the first rejection."""
        room = self.request.max_completion_length - self.recorder.lengths[self.row_ids]
        width = min(self.request.block_size, int(room[self.alive].max()))
        with self.clock.phase("draft"):
            log_p, block = self._draft_block(width)
        with self.clock.phase("verify"):
            log_t = self._teacher_block(teacher, block)
        self.stats.waves += 1
        with self.clock.phase("bridge"):
            verified = self._verify(log_p, log_t, block)
        with self.clock.phase("rest"):
            self.stats.empty_residuals += verified.num_empty_residuals
            self._commit(
                verified.counts,
                verified.broken,
                verified.tokens,
                proposal_ids=block,
                correction_mask=verified.corrections,
                student_logprobs=verified.student_logprobs,
                behavior_logprobs=verified.behavior_logprobs,
                teacher_logprobs=verified.teacher_logprobs,
                teacher_mode_ids=verified.teacher_mode_ids,
                beta=verified.bridge.beta,
                kl=verified.bridge.kl,
                tv=verified.bridge.tv,
                acceptance_probability=verified.acceptance,
            )

    def _draft_block(self, width: int) -> tuple[Tensor, Tensor]:
        """The student's log-probs [R, width, V] and its proposals [R, width] after the committed text."""
        drafted, proposals = [], []
        feed = self.pending
        noise = proposal_uniforms(self.keys, self._positions(width), self.student.vocab_size)
        for offset in range(width):
            log_p, feed = self._draft(feed, offset, noise[:, offset])
            drafted.append(log_p)
            proposals.append(feed)
        return torch.stack(drafted, dim=1), torch.stack(proposals, dim=1)

    def _teacher_block(self, teacher: Decoder, block: Tensor) -> Tensor:
        """The teacher's log-probs [R, K, V] at the prefix of each proposal."""
        prefix = torch.cat([self.pending.unsqueeze(1), block[:, :-1]], dim=1)
        return normalized_log_probs(self._teacher_forward(teacher, prefix, self.starts, num_logits=block.shape[1]))

    def _verify(self, log_p: Tensor, log_t: Tensor, block: Tensor) -> VerifiedBlock:
        """Verify a block of proposals [R, K] at the rows' present positions."""
        return verify_requested(self.request, log_p, log_t, block, self.keys, self._positions(block.shape[1]))

    def _commit(self, counts: Tensor, broken: Tensor, tokens: Tensor, **metadata: Tensor) -> None:
        """Cut the block at the cap and at the first stop token, record it, advance, and end rows."""
        cap = self.request.max_completion_length
        room = cap - self.recorder.lengths[self.row_ids]
        whole = counts
        counts = torch.minimum(counts, room) * self.alive
        offsets = torch.arange(tokens.shape[1], device=tokens.device)
        stops = torch.isin(tokens, self.stop_ids) & (offsets < counts.unsqueeze(1))
        stopped = stops.any(dim=1)
        counts = torch.where(stopped, stops.long().argmax(dim=1) + 1, counts)
        self.recorder.commit(self.row_ids, counts, completion_ids=tokens, **metadata)

        last = take(tokens, (counts - 1).clamp(min=0))
        self.pending = torch.where(counts > 0, last, self.pending)
        self.starts = self.starts + counts
        full = self.recorder.lengths[self.row_ids] >= cap
        broken = broken & (counts == whole) & self.alive
        for reason, ended in (("stop", stopped), ("length", full & ~stopped), ("nan", broken & ~stopped & ~full)):
            for row in self.row_ids[ended & self.alive].tolist():
                self.recorder.finish(row, reason)
        self.alive = self.alive & ~(stopped | full | broken)

    def _compact(self) -> None:
        """Drop finished rows from the caches once enough of them have gathered; until then they idle."""
        running = int(self.alive.sum())
        if running == 0 or running > COMPACT_BELOW * self.alive.shape[0]:
            return
        kept = torch.nonzero(self.alive).flatten()
        self.student_cache.keep_rows(kept)
        if self.teacher_cache is not None:
            self.teacher_cache.keep_rows(kept)
        self.row_ids, self.alive, self.keys = self.row_ids[kept], self.alive[kept], self.keys.select(kept)
        self.starts, self.pending = self.starts[kept], self.pending[kept]
        self._noise = self._noise[kept] if self._noise is not None else None

    def _draft(self, tokens: Tensor, offset: int, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Feed one token a row; the student's log-probs [R, V] and its draw [R] at the next position."""
        logits = self._student_forward(tokens.unsqueeze(1), self.starts + offset, num_logits=1)
        log_p = normalized_log_probs(logits[:, 0])
        return log_p, draw_proposals(log_p, uniforms)

    def _student_noise(self) -> Tensor:
        """Uniforms of the next position; made for several positions at once, since the call costs more than they do."""
        if self._noise is None or self._noise_used == self._noise.shape[1]:
            self._noise = proposal_uniforms(self.keys, self._positions(NOISE_AHEAD), self.student.vocab_size)
            self._noise_used = 0
        self._noise_used += 1
        return self._noise[:, self._noise_used - 1]

    def _positions(self, width: int) -> Tensor:
        """[R, width] absolute response positions of the next block."""
        lengths = self.recorder.lengths[self.row_ids]
        return lengths.unsqueeze(1) + torch.arange(width, device=lengths.device)

    def _student_forward(self, tokens: Tensor, starts: Tensor, num_logits: int) -> Tensor:
        self.stats.student_forwards += 1
        visible = int(starts.max()) + tokens.shape[1]
        return self.student.forward(tokens, starts, self.student_cache, visible, num_logits)

    def _teacher_forward(self, teacher: Decoder, tokens: Tensor, starts: Tensor, num_logits: int) -> Tensor:
        self.stats.teacher_q_forwards += 1
        visible = int(starts.max()) + tokens.shape[1]
        return teacher.forward(tokens, starts, self.teacher_cache, visible, num_logits)
