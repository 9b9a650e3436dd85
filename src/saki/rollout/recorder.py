"""Collects committed tokens and their metadata into a :class:`RolloutBatch`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saki.rollout.rows import Row
from saki.types import RolloutBatch, RolloutRequest, fill_value

METADATA = {
    "completion_ids": torch.long,
    "proposal_ids": torch.long,
    "correction_mask": torch.bool,
    "student_logprobs": None,
    "behavior_logprobs": None,
    "teacher_logprobs": None,
    "teacher_mode_ids": torch.long,
    "beta": None,
    "kl": None,
    "tv": None,
    "acceptance_probability": None,
    "proposal_logprobs": None,
    "proposal_teacher_logprobs": None,
    "mode_student_logprobs": None,
    "mode_teacher_logprobs": None,
}
"""Fields of one committed position; None stands for the batch's float dtype."""


class RolloutRecorder:
    """Buffers of one work unit, on the host or the device; rows commit blocks of positions until they finish.

    Args:
        rows: The unit's rows.
        request: The request served.
        student_version: Version of the weights that draft.
        float_dtype: float64 for float64 models, else float32.
        device: Where the buffers live while the rollout runs.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        request: RolloutRequest,
        student_version: int,
        float_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rows, self.request, self.student_version = rows, request, student_version
        # One row and one column more: what idle slots and cut positions write goes there, without a branch.
        shape = (len(rows) + 1, request.max_completion_length + 1)
        self.buffers = {
            name: torch.full(shape, fill_value(dtype or float_dtype), dtype=dtype or float_dtype, device=device)
            for name, dtype in METADATA.items()
        }
        self.lengths = torch.zeros(len(rows) + 1, dtype=torch.long, device=device)
        self.reasons = [""] * len(rows)

    @property
    def idle_row(self) -> int:
        """The row that slots without a row of the unit write to."""
        return len(self.rows)

    def commit(self, row_ids: Tensor, counts: Tensor, **values: Tensor) -> None:
        """Append the first ``counts[r]`` of K positions to each given row.

        Args:
            row_ids: [R] int64, rows of the unit, or :attr:`idle_row`.
            counts: [R] int64 in [0, K].
            **values: [R, K] per field of :data:`METADATA`; fields left out keep their fill.
        """
        width = next(iter(values.values())).shape[1]
        offsets = torch.arange(width, device=counts.device)
        taken = (offsets < counts.unsqueeze(1)) & (row_ids != self.idle_row).unsqueeze(1)
        cut = self.request.max_completion_length
        position = torch.where(taken, self.lengths[row_ids].unsqueeze(1) + offsets, cut)
        rows = row_ids.unsqueeze(1).expand(-1, width)
        for name, value in values.items():
            buffer = self.buffers[name]
            buffer[rows, position] = value.to(buffer.dtype)
        self.lengths.index_add_(0, row_ids, torch.where(row_ids != self.idle_row, counts, 0))

    def finish(self, row: int, reason: str) -> None:
        """Record why a row ended."""
        self.reasons[row] = reason

    def batch(self) -> RolloutBatch:
        """The finished batch, on the host, as wide as its longest row (at least one position)."""
        lengths = self.lengths[:-1].cpu()
        width = max(int(lengths.max()), 1)
        prompt_width = max(len(row.prompt.token_ids) for row in self.rows)
        prompt_ids = torch.full((len(self.rows), prompt_width), -1, dtype=torch.long)
        for index, row in enumerate(self.rows):
            prompt_ids[index, prompt_width - len(row.prompt.token_ids) :] = torch.tensor(row.prompt.token_ids)
        prompt_lengths = torch.tensor([len(row.prompt.token_ids) for row in self.rows])
        return RolloutBatch(
            prompt_ids=prompt_ids,
            prompt_mask=torch.arange(prompt_width) >= prompt_width - prompt_lengths.unsqueeze(1),
            response_mask=torch.arange(width) < lengths.unsqueeze(1),
            prompt_keys=torch.tensor([row.prompt.key for row in self.rows], dtype=torch.long),
            sample_indices=torch.tensor([row.sample_index for row in self.rows], dtype=torch.long),
            finish_reasons=tuple(self.reasons),
            student_version=self.student_version,
            trust_region_radius=0.0 if self.request.student_only else self.request.trust_region_radius,
            seed=self.request.seed,
            **{name: buffer[:-1, :width].cpu() for name, buffer in self.buffers.items()},
        )
