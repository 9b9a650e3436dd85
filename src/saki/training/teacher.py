"""The teacher's next-token laws at response positions, from one pass over the sequences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saki.data import collate_rollout
from saki.functional import entropy, normalized_log_probs
from saki.rollout import HFDecoder
from saki.rollout.memory import with_half_until_it_fits
from saki.rollout.protocol import ScoreResult
from saki.rollout.scoring import chunk_of_positions, join_scores, logprob_and_mode, with_teacher_scores
from saki.types import RolloutBatch, fill_value

PLACES = "teacher_places"
"""Column [B, T] of a micro-batch: which of the kept hidden states belongs to a response position."""


class VocabularyTeacher:
    """Gives whole teacher laws to the losses that need them.

    What is kept of a pass are the hidden states of the response positions, and logits exist only for the tokens asked
    for. A step whose rollout asked nothing of the teacher is scored here by one pass, and its hidden states wait on the
    host for the losses: tokens x hidden size, in the teacher's dtype. The tokens of other steps run through the teacher
    once more, micro-batch by micro-batch.

    Args:
        decoder: The teacher. Its module may be the one that an engine runs: nothing of it is changed.
        rows_at_once: Rows that run together.
    """

    def __init__(self, decoder: HFDecoder, rows_at_once: int) -> None:
        self._decoder, self._rows_at_once = decoder, rows_at_once
        self._kept: Tensor | None = None

    @property
    def keeps(self) -> bool:
        """Whether hidden states of the present step are there."""
        return self._kept is not None

    def forget(self) -> None:
        """Let go of the hidden states of a step."""
        self._kept = None

    def score(self, batch: RolloutBatch) -> RolloutBatch:
        """A step's rollout with the teacher's log-probs and modes filled in; its hidden states [N, hidden] are kept."""
        self.forget()
        num_tokens = int(batch.response_mask.sum())

        def attempt(rows_at_once: int) -> Tensor | None:
            kept, filled = None, 0
            for rows in torch.arange(len(batch)).split(rows_at_once):
                micro = collate_rollout(batch, rows, 0)
                columns = {
                    "input_ids": micro["input_ids"],
                    "attention_mask": micro["attention_mask"],
                    "response_mask": micro["response_mask"],
                }
                inputs = {name: value.to(self._decoder.device) for name, value in columns.items()}
                features = self._run(inputs)
                if kept is None:
                    kept = torch.empty(num_tokens, *features.shape[1:], dtype=features.dtype)
                kept[filled : filled + len(features)] = features
                filled += len(features)
            return kept

        rows = min(self._rows_at_once, len(batch))
        self._kept = with_half_until_it_fits(f"scoring {len(batch)} rows", rows, attempt, self._admit_at_most)
        scores = ScoreResult(**self._read(batch, logprob_and_mode))
        return with_teacher_scores(batch, join_scores([scores], batch.student_logprobs))

    def entropies(self, batch: RolloutBatch) -> Tensor:
        """Entropy [B, T] of the kept laws of a batch, nats, NaN outside the responses."""
        return self._read(batch, lambda log_t, ids: {"entropy": entropy(log_t)})["entropy"]

    def places(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """The column :data:`PLACES` of the step whose hidden states are kept; none without them."""
        if self._kept is None:
            return {}
        mask = batch.response_mask
        return {PLACES: (mask.flatten().cumsum(0) - 1).clamp(min=0).view(mask.shape)}

    def features(self, inputs: dict[str, Tensor]) -> Tensor:
        """Features [N, hidden] of the N valid response positions of a micro-batch, in row-major order.

        Args:
            inputs: ``input_ids`` and ``attention_mask`` [B, L], ``response_mask`` [B, T]; prompts padded on the left.
        """
        if PLACES not in inputs:
            return self._run(inputs)
        assert self._kept is not None
        return self._kept[inputs[PLACES][inputs["response_mask"]].cpu()].to(self._decoder.device)

    @torch.no_grad()
    def logprobs(self, features: Tensor, dtype: torch.dtype) -> Tensor:
        """Log-probs [n, V] of some positions, float32, or float64 where that is asked for."""
        with torch.autocast(features.device.type, enabled=False):
            return normalized_log_probs(self._decoder.project(features).to(dtype))

    @torch.no_grad()
    def _run(self, inputs: dict[str, Tensor]) -> Tensor:
        mask, ids = inputs["response_mask"], inputs["input_ids"]
        length, width = ids.shape[1], mask.shape[1]
        if not bool(mask.any()):
            return self._decoder.features(ids[:1, :1])[:, :0].flatten(0, 1)
        # The decoder counts positions from the row's first slot, so rows move to the left by their padding.
        padding = (length - width) - inputs["attention_mask"][:, : length - width].sum(dim=1, keepdim=True)
        shifted = (torch.arange(length, device=ids.device) + padding).clamp(max=length - 1)
        with torch.autocast(ids.device.type, enabled=False):
            features = self._decoder.features(ids.gather(1, shifted))
        rows, positions = torch.nonzero(mask, as_tuple=True)
        return features[rows, positions + (length - width - 1) - padding[rows, 0]]

    @torch.no_grad()
    def _read(self, batch: RolloutBatch, reader: Callable[[Tensor, Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
        """[B, T] values on the host of the kept laws [n, V] and the committed ids [n], a chunk of tokens at a time."""
        assert self._kept is not None
        mask = batch.response_mask
        ids = batch.completion_ids[mask]
        chunk = chunk_of_positions(self._decoder)
        parts: dict[str, list[Tensor]] = {}
        for kept, chosen in zip(self._kept.split(chunk), ids.split(chunk), strict=True):
            logits = self._decoder.project(kept.to(self._decoder.device))
            for name, value in reader(normalized_log_probs(logits), chosen.to(logits.device)).items():
                parts.setdefault(name, []).append(value.cpu())
        values = {}
        for name, part in parts.items():
            found = torch.cat(part)
            values[name] = found.new_full(mask.shape, fill_value(found.dtype))
            values[name][mask] = found
        return values

    def _admit_at_most(self, rows: int) -> None:
        self._rows_at_once = rows
