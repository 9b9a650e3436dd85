"""Facts of a rollout that a method asks for beside its record: each a pass of a frozen model over the step's rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saki.functional import RowKeys, draw_teacher_samples, entropy
from saki.methods import Method
from saki.objectives import TokenFacts
from saki.rollout import HFDecoder, model_checksum
from saki.rollout.scoring import read_rows, score_rows
from saki.training.ranks import Ranks
from saki.training.teacher import VocabularyTeacher
from saki.types import RolloutBatch


class StepFacts:
    """Computes a method's facts, and nothing for a method without any.

    The reference is the student as the trainer was given it, before any checkpoint is read. A resumed run is given the
    same initial student and rebuilds the reference from it; ``resume_facts`` has its checksum, so that a checkpoint
    refuses another.

    Args:
        method: Says what it needs.
        teacher: The teacher, for facts about it.
        reference: The initial student, for ``reference_logprobs``.
        max_batch_rows: Rows that are scored together.
        laws: The teacher's laws, which may be there already.
    """

    def __init__(
        self,
        method: Method,
        teacher: HFDecoder | None,
        reference: HFDecoder | None,
        max_batch_rows: int,
        laws: VocabularyTeacher | None = None,
    ) -> None:
        self._needs, self._router_needs = method.needs, method.router_needs
        self._teacher, self._reference = teacher, reference
        self._max_batch_rows, self._laws = max_batch_rows, laws
        self.resume_facts = (
            {"reference_checksum": model_checksum(reference.named_tensors())} if reference is not None else {}
        )

    def of(self, batch: RolloutBatch) -> TokenFacts:
        """The facts of a rollout, on the host."""
        return TokenFacts(
            reference_logprobs=self._reference_logprobs(batch) if "reference_logprobs" in self._needs else None,
            teacher_sample_ids=self._teacher_samples(batch) if "teacher_sample_ids" in self._needs else None,
            teacher_entropy=self._teacher_entropy(batch) if "teacher_entropy" in self._needs else None,
        )

    def of_step(self, facts: TokenFacts, batch: RolloutBatch, ranks: Ranks) -> TokenFacts:
        """The facts of this rank's rollout, with what a router must know of the rest of the step.

        Every rank must call it.
        """
        if ranks.size == 1:
            return facts

        def of_all(values: Tensor) -> Tensor:
            return torch.cat(ranks.gather(values[batch.response_mask]))

        if "step_entropies" in self._router_needs:
            assert facts.teacher_entropy is not None
            facts = replace(facts, step_entropies=of_all(facts.teacher_entropy))
        if "step_logprobs" in self._router_needs:
            facts = replace(facts, step_logprobs=of_all(batch.student_logprobs))
        return facts

    def _reference_logprobs(self, batch: RolloutBatch) -> Tensor:
        assert self._reference is not None
        parts = [score_rows(self._reference, part)[0].logprobs for part in self._parts(batch)]
        return torch.cat(parts).to(batch.student_logprobs.dtype)

    def _teacher_entropy(self, batch: RolloutBatch) -> Tensor:
        assert self._teacher is not None
        if self._laws is not None and self._laws.keeps:
            return self._laws.entropies(batch).to(batch.student_logprobs.dtype)
        parts = [
            read_rows(self._teacher, part, lambda log_t, *_: {"entropy": entropy(log_t)})[0]["entropy"]
            for part in self._parts(batch)
        ]
        return torch.cat(parts).to(batch.student_logprobs.dtype)

    def _teacher_samples(self, batch: RolloutBatch) -> Tensor:
        """A draw from T at each correction, -1 elsewhere; rows without a correction are not looked at."""
        assert self._teacher is not None
        samples = torch.full_like(batch.completion_ids, -1)
        corrections = batch.correction_mask & batch.response_mask
        rows = torch.nonzero(corrections.any(dim=1)).flatten()
        for chosen in rows.split(self._max_batch_rows) if rows.numel() else ():  # nothing splits into one empty piece
            part = batch.select(chosen)
            keys = RowKeys(batch.seed, part.prompt_keys, part.sample_indices)
            drawn, _ = read_rows(self._teacher, part, _TeacherDraws(keys, self._teacher.device))
            samples[chosen] = drawn["sample"]
        return samples.masked_fill(~corrections, -1)

    def _parts(self, batch: RolloutBatch) -> list[RolloutBatch]:
        return [batch.select(rows) for rows in torch.arange(len(batch)).split(self._max_batch_rows)]


class _TeacherDraws:
    """Reads a draw from the teacher at each position."""

    def __init__(self, keys: RowKeys, device: torch.device) -> None:
        self._keys = RowKeys(keys.seed, keys.prompt_keys.to(device), keys.sample_indices.to(device))

    def __call__(self, log_t: Tensor, ids: Tensor, positions: Tensor) -> dict[str, Tensor]:
        columns = [
            draw_teacher_samples(log_t[:, column], self._keys, positions[:, column]) for column in range(log_t.shape[1])
        ]
        return {"sample": torch.stack(columns, dim=1)}
