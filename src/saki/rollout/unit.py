"""One work unit: a fixed group of rows rolled out together, from prompt to last token, on a fixed number of slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from saki.functional import RowKeys, draw_proposals, normalized_log_probs, proposal_uniforms
from saki.rollout.block_size import BlockSizer
from saki.rollout.clock import PhaseClock
from saki.rollout.decoder import Decoder
from saki.rollout.prompt_cache import PromptCache
from saki.rollout.protocol import EngineStats
from saki.rollout.recorder import RolloutRecorder
from saki.rollout.rows import Row, row_keys, row_slots
from saki.rollout.skd import verify_requested
from saki.rollout.verifier import VerifiedBlock, take
from saki.types import RolloutBatch, RolloutRequest

COMPACT_BELOW = 0.75
"""Once no row waits, caches are compacted when fewer than this share of the slots still run."""

NOISE_AHEAD = 8
"""Positions whose random numbers the student-only path makes at once."""

RUNNING, STOP, LENGTH, NAN = range(4)
ENDINGS = {STOP: "stop", LENGTH: "length", NAN: "nan"}


class WorkUnit:
    """Runs the rows of one unit on a number of slots; a slot whose row has ended takes the next waiting row at once.

    Student and teacher caches hold the same n - 1 entries of a row with n tokens; the last token is pending.
    One ``starts`` therefore serves both, and no catch-up forward is needed after a wave, whatever it committed.

    The host learns once a wave which rows ended and how far each is; nothing else is read back.

    Args:
        student: Decoder that drafts.
        teacher: Decoder that verifies; None on the student-only path.
        stop_ids: [S] int64, ids that end a row.
        rows: The unit's rows, prompt-major.
        request: The request served.
        stats: Counters to add to.
        clock: Phases to charge.
        prefill_chunk: Prompt positions per prefill forward.
        num_slots: Rows that run at once.
        refill: Whether a freed slot takes the next row; without it the next rows wait until all slots are free.
        compiled: Whether the bridge's passes are compiled.
        sizer: Picks K of each wave, at most the request's; None for always the request's.
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
        num_slots: int,
        refill: bool = True,
        compiled: bool = False,
        sizer: BlockSizer | None = None,
    ) -> None:
        self.student, self.request, self.stop_ids, self.sizer = student, request, stop_ids, sizer
        self.teacher = None if request.student_only else teacher
        self.stats, self.clock, self.refill, self.compiled = stats, clock, refill, compiled
        device = student.device
        float_dtype = torch.float64 if student.dtype == torch.float64 else torch.float32
        self.recorder = RolloutRecorder(rows, request, student.version, float_dtype, device)
        self.waiting = deque(range(len(rows)))
        self.rows = rows
        self.row_caps = self._row_caps()
        self._caps = torch.tensor([*self.row_caps, request.max_completion_length], device=device)  # the idle row's last
        num_slots = min(num_slots, len(rows))
        self.row_ids = torch.full((num_slots,), self.recorder.idle_row, dtype=torch.long, device=device)
        self.alive = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self.starts = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.pending = torch.zeros(num_slots, dtype=torch.long, device=device)
        self.all_keys: RowKeys = row_keys([*rows, rows[0]], request, device)
        self.keys = self.all_keys.select(self.row_ids)
        # What the host knows of each slot: its row (or None), and the length of that row's prompt and completion.
        self.slots: list[int | None] = [None] * num_slots
        self.lengths = [0] * num_slots
        self._empty_residuals = torch.zeros((), dtype=torch.long, device=device)
        self._noise: Tensor | None = None
        self._noise_used = 0
        decoders = [student] if self.teacher is None else [student, self.teacher]
        self.caches = [decoder.new_cache(num_slots, row_slots(rows, request)) for decoder in decoders]
        self.prompts = PromptCache(decoders, rows, stats, prefill_chunk)

    def _row_caps(self) -> list[int]:
        """Most tokens of each row's completion."""
        return [self.request.max_completion_length] * len(self.rows)

    @property
    def num_running(self) -> int:
        """Slots that hold a row."""
        return sum(row is not None for row in self.slots)

    def run(self, on_finished: Callable[[int], None]) -> RolloutBatch:
        """Roll every row out; ``on_finished`` hears how many rows ended after each round."""
        while self._admit() or self.num_running:
            if self.teacher is None:
                self._student_step()
            else:
                self._wave(self.teacher)
            on_finished(self._retire())
        self.stats.empty_residuals += int(self._empty_residuals)
        self.stats.committed_tokens += int(self.recorder.lengths[:-1].sum())
        return self.recorder.batch()

    # ---- slots ---------------------------------------------------------------------------------------------------

    def _admit(self) -> bool:
        """Give free slots to waiting rows; True if any was admitted."""
        free = [slot for slot, row in enumerate(self.slots) if row is None]
        if not free or not self.waiting or (not self.refill and len(free) < len(self.slots)):
            return False
        admitted = [(slot, self.waiting.popleft()) for slot in free[: len(self.waiting)]]
        rows = [self.rows[index] for _, index in admitted]
        with self.clock.phase("prefill"):
            device = self.starts.device
            slots = torch.tensor([slot for slot, _ in admitted], device=device)
            self.prompts.admit(rows, slots, self.caches)
            self.row_ids[slots] = torch.tensor([index for _, index in admitted], device=device)
            self.starts[slots] = torch.tensor([len(row.prompt.token_ids) - 1 for row in rows], device=device)
            self.pending[slots] = torch.tensor([row.prompt.token_ids[-1] for row in rows], device=device)
            self.alive[slots] = True
            self.keys = self.all_keys.select(self.row_ids)
            for (slot, index), row in zip(admitted, rows, strict=True):
                self.slots[slot], self.lengths[slot] = index, len(row.prompt.token_ids)
            if self._noise is not None:
                left = self._noise.shape[1] - self._noise_used
                fresh = proposal_uniforms(
                    self.keys.select(slots), self._positions(left)[slots], self.student.vocab_size
                )
                self._noise[slots, self._noise_used :] = fresh
        return True

    def _retire(self) -> int:
        """Read back which rows ended; free their slots, and shrink once nobody waits. Returns how many ended."""
        freed = [slot for slot, row in enumerate(self.slots) if row is not None and self._codes[slot] != RUNNING]
        for slot in freed:
            row = self.slots[slot]
            assert row is not None
            self.recorder.finish(row, ENDINGS[self._codes[slot]])
            self.slots[slot] = None
        if freed:
            idle = torch.tensor(freed, device=self.row_ids.device)
            self.row_ids[idle] = self.recorder.idle_row
            self.starts[idle], self.pending[idle] = 0, 0
            for slot in freed:
                self.lengths[slot] = 1
            if not self.waiting:
                self._compact()
        return len(freed)

    def _compact(self) -> None:
        """Drop free slots from the caches once enough of them have gathered; until then they idle."""
        kept = [slot for slot, row in enumerate(self.slots) if row is not None]
        if not kept or len(kept) > COMPACT_BELOW * len(self.slots):
            return
        index = torch.tensor(kept, device=self.row_ids.device)
        for cache in self.caches:
            cache.keep_rows(index)
        self.row_ids, self.alive, self.keys = self.row_ids[index], self.alive[index], self.keys.select(index)
        self.starts, self.pending = self.starts[index], self.pending[index]
        self._noise = self._noise[index] if self._noise is not None else None
        self.slots, self.lengths = [self.slots[slot] for slot in kept], [self.lengths[slot] for slot in kept]

    # ---- one round -----------------------------------------------------------------------------------------------

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
                proposal_logprobs=log_p_y,
            )

    def _wave(self, teacher: Decoder) -> None:
        """Draft up to K proposals, verify them in one teacher forward, commit through the first rejection."""
        width, before = self._width(), self.lengths
        with self.clock.phase("draft"):
            log_p, block = self._draft_block(width)
        with self.clock.phase("verify"):
            log_t = self._teacher_block(teacher, block)
        self.stats.waves += 1
        with self.clock.phase("bridge"):
            verified = self._verify(log_p, log_t, block)
        with self.clock.phase("rest"):
            self._empty_residuals = self._empty_residuals + verified.num_empty_residuals
            self.stats.solved_bridges += verified.num_solved
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
                proposal_logprobs=verified.proposal_logprobs,
                proposal_teacher_logprobs=verified.proposal_teacher_logprobs,
                mode_student_logprobs=verified.mode_student_logprobs,
                mode_teacher_logprobs=verified.mode_teacher_logprobs,
            )
        if self.sizer is not None:
            going = [slot for slot, row in enumerate(self.slots) if row is not None and self._codes[slot] == RUNNING]
            self.sizer.observe([self.lengths[slot] - before[slot] for slot in going], width)

    def _width(self) -> int:
        """Proposals of the next wave: K, or what the row with most room can still take."""
        room = max(
            self.row_caps[row] - (self.lengths[slot] - len(self.rows[row].prompt.token_ids))
            for slot, row in enumerate(self.slots)
            if row is not None
        )
        most = self.request.block_size if self.sizer is None else self.sizer.next(self.num_running)
        return min(most, room)

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
        prefix = torch.cat([self.pending.unsqueeze(1), block[:, :-1]], dim=1).to(teacher.device)
        self.stats.teacher_q_forwards += 1
        width = block.shape[1]
        logits = teacher.forward(prefix, self.starts.to(teacher.device), self.caches[1], self._visible(width), width)
        return normalized_log_probs(logits).to(block.device)

    def _verify(self, log_p: Tensor, log_t: Tensor, block: Tensor) -> VerifiedBlock:
        """Verify a block of proposals [R, K] at the rows' present positions."""
        return verify_requested(
            self.request, log_p, log_t, block, self.keys, self._positions(block.shape[1]), self.compiled
        )

    def _commit(self, counts: Tensor, broken: Tensor, tokens: Tensor, **metadata: Tensor) -> None:
        """Cut the block at the cap and at the first stop token, record it, advance, and see which rows end."""
        cap = self._caps[self.row_ids]
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
        broken = broken & (counts == whole)
        code = torch.where(broken, NAN, RUNNING)
        code = torch.where(full, LENGTH, code)
        code = torch.where(stopped, STOP, code) * self.alive
        self.alive = self.alive & (code == RUNNING)
        self._codes, self.lengths = torch.stack([code, self.starts + 1]).tolist()

    def _draft(self, tokens: Tensor, offset: int, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Feed one token a row; the student's log-probs [R, V] and its draw [R] at the next position."""
        self.stats.student_forwards += 1
        starts = self.starts + offset
        logits = self.student.forward(tokens.unsqueeze(1), starts, self.caches[0], self._visible(offset + 1), 1)
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

    def _visible(self, queries: int) -> int:
        """Cache entries that the longest row sees in a forward of so many queries behind the committed text."""
        return max(self.lengths) - 1 + queries
