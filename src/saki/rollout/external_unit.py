"""A work unit whose two models answer over the wire: the paper's external block loop (Appendix K.2)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from saki.rollout.clock import PhaseClock
from saki.rollout.decoder import Decoder
from saki.rollout.external_client import RemoteCache, RemoteDecoder
from saki.rollout.external_stats import Ledger
from saki.rollout.prompt_cache import PromptCache
from saki.rollout.protocol import EngineStats
from saki.rollout.rows import Row
from saki.rollout.unit import WorkUnit
from saki.rollout.verifier import VerifiedBlock
from saki.types import RolloutRequest


class ExternalUnit(WorkUnit):
    """Slots, commits and records are those of :class:`WorkUnit`; a wave is one draft and one score request.

    Dense log-probs come to the coordinator, which builds q and couples here. The student-only path asks for the
    log-probs of the proposals alone, K tokens a request.
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
        *more: Any,
    ) -> None:
        super().__init__(student, teacher, stop_ids, rows, request, stats, clock, prefill_chunk, *more)
        decoders = [cast("RemoteDecoder", student)]
        if self.teacher is not None:
            decoders.append(cast("RemoteDecoder", self.teacher))
        self._remote = decoders
        # Prompts only fill caches, so their prefill asks for no logits.
        self.prompts = PromptCache([_Prefill(decoder) for decoder in decoders], rows, stats, prefill_chunk)

    @property
    def _ledger(self) -> Ledger:
        return self._remote[0].ledger

    def _wave(self, teacher: Decoder) -> None:
        begin, parts, accounted = time.perf_counter(), self._ledger.parts(), self._ledger.accounted()
        rest = self._ledger.seconds["rest"]
        super()._wave(teacher)
        wall = time.perf_counter() - begin
        self._ledger.wave_ratios.append(wall / (self._ledger.parts() - parts))
        in_requests = self._ledger.seconds["rest"] - rest
        self._ledger.add("rest", wall - (self._ledger.accounted() - accounted) - in_requests)

    def _student_step(self) -> None:
        """Up to K tokens of the student alone, for every row."""
        with self.clock.phase("draft"):
            width = self._width()
            block, log_p = self._ask(width, dense=False)
        with self.clock.phase("rest"):
            valid = ~torch.isnan(log_p)
            counts = valid.long().cumprod(dim=1).sum(dim=1)
            log_p = log_p.double()
            zero = torch.zeros_like(log_p)
            self._commit(
                counts,
                counts < width,
                block,
                proposal_ids=block,
                correction_mask=torch.zeros_like(block, dtype=torch.bool),
                student_logprobs=log_p,
                behavior_logprobs=log_p,
                beta=zero,
                kl=zero,
                tv=zero,
                acceptance_probability=zero + 1,
                proposal_logprobs=log_p,
            )

    def _draft_block(self, width: int) -> tuple[Tensor, Tensor]:
        block, log_p = self._ask(width, dense=True)
        return log_p, block

    def _ask(self, width: int, dense: bool) -> tuple[Tensor, Tensor]:
        self.stats.student_forwards += width
        return self._remote[0].draft(
            self.pending,
            self.starts,
            cast("RemoteCache", self.caches[0]),
            self._visible(1),
            self.keys,
            self.recorder.lengths[self.row_ids],
            width,
            dense,
        )

    def _teacher_block(self, teacher: Decoder, block: Tensor) -> Tensor:
        prefix = torch.cat([self.pending.unsqueeze(1), block[:, :-1]], dim=1)
        self.stats.teacher_q_forwards += 1
        cache = cast("RemoteCache", self.caches[1])
        return self._remote[1].score(prefix, self.starts, cache, self._visible(block.shape[1]))

    def _verify(self, log_p: Tensor, log_t: Tensor, block: Tensor) -> VerifiedBlock:
        begin = time.perf_counter()
        verified = super()._verify(log_p, log_t, block)
        self._ledger.add("bridge", verified.bridge_seconds)
        self._ledger.add("coupling", time.perf_counter() - begin - verified.bridge_seconds)
        return verified


class _Prefill:
    """A remote decoder as the prompt cache sees it: its forwards fill caches and send no logits back."""

    def __init__(self, decoder: RemoteDecoder) -> None:
        self._decoder = decoder
        self.vocab_size, self.device, self.dtype = decoder.vocab_size, decoder.device, decoder.dtype
        self.version, self.max_positions = decoder.version, decoder.max_positions
        self.new_cache, self.cache_bytes = decoder.new_cache, decoder.cache_bytes
        self.named_tensors = decoder.named_tensors

    def compile(self) -> None:
        self._decoder.compile()

    def forward(self, token_ids: Tensor, starts: Tensor, cache: RemoteCache, visible: int, num_logits: int) -> Tensor:
        self._decoder.extend(token_ids, starts, cache, visible)
        return torch.empty(token_ids.shape[0], 0, self.vocab_size)
