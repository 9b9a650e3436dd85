"""The one record that passes between a rollout and everything that uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FINISH_REASONS = ("stop", "length", "nan")
"""``stop``: a stop token was committed (it is the last valid position); ``length``: the cap was reached; ``nan``: a
model gave NaN at the next position, and the row ended there alone."""

FILL = {"long": -1, "float": float("nan")}
"""What stands where a position is not part of a completion, or where a rollout has no such value."""


@dataclass(frozen=True)
class RolloutBatch:
    """Token-aligned results of a rollout, on the host. B rows (prompt-major), T positions, P prompt width.

    Positions outside ``response_mask`` hold -1 (ids), False (masks) or NaN (floats). The same fills stand
    for values that a rollout does not have: ``teacher_*`` is unknown after a student-only rollout that was
    not scored. On the student-only path ``behavior_logprobs`` equals ``student_logprobs``, ``beta``, ``kl``
    and ``tv`` are 0, ``acceptance_probability`` is 1, and ``mode_student_logprobs`` is unknown, scored or not.

    Where the proposal was kept, ``proposal_*`` equals ``student_logprobs`` and ``teacher_logprobs`` to the bit.

    Attributes:
        prompt_ids: [B, P] int64, padded on the left with -1.
        prompt_mask: [B, P] bool, True on prompt tokens.
        completion_ids: [B, T] int64, committed tokens y, padded on the right with -1.
        response_mask: [B, T] bool, True on valid response tokens, the end token included (M_t).
        proposal_ids: [B, T] int64, the student's proposal z at each committed position (Eq. 3).
        correction_mask: [B, T] bool, True where z was rejected and y is a residual draw (C_t, Eq. 7).
        student_logprobs: [B, T] nats, log p(y) of the student that drafted.
        behavior_logprobs: [B, T] nats, log q(y).
        teacher_logprobs: [B, T] nats, log T(y).
        teacher_mode_ids: [B, T] int64, argmax of T (Eq. 14).
        beta: [B, T] bridge coefficient in [0, 1] (Eq. 1).
        kl: [B, T] nats, KL(q||p) (Eq. 2).
        tv: [B, T] TV(p, q), the correction probability (Eq. 8).
        acceptance_probability: [B, T] min(1, q(z)/p(z)) of the proposal (Eq. 4).
        proposal_logprobs: [B, T] nats, log p(z) of the student that drafted.
        proposal_teacher_logprobs: [B, T] nats, log T(z).
        mode_student_logprobs: [B, T] nats, log p of the teacher's mode.
        mode_teacher_logprobs: [B, T] nats, log T of its mode.
        prompt_keys: [B] int64.
        sample_indices: [B] int64.
        finish_reasons: B strings out of :data:`FINISH_REASONS`.
        student_version: Weight version of the student that drafted.
        trust_region_radius: Radius in force, nats.
        seed: Request seed.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    response_mask: Tensor
    proposal_ids: Tensor
    correction_mask: Tensor
    student_logprobs: Tensor
    behavior_logprobs: Tensor
    teacher_logprobs: Tensor
    teacher_mode_ids: Tensor
    beta: Tensor
    kl: Tensor
    tv: Tensor
    acceptance_probability: Tensor
    proposal_logprobs: Tensor
    proposal_teacher_logprobs: Tensor
    mode_student_logprobs: Tensor
    mode_teacher_logprobs: Tensor
    prompt_keys: Tensor
    sample_indices: Tensor
    finish_reasons: tuple[str, ...]
    student_version: int
    trust_region_radius: float
    seed: int

    def __post_init__(self) -> None:
        rows = self.completion_ids.shape[0]
        for name in TOKEN_FIELDS:
            value = getattr(self, name)
            if value.shape != self.completion_ids.shape:
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}, expected {tuple(self.completion_ids.shape)} "
                    "as completion_ids"
                )
        for name in ("prompt_keys", "sample_indices"):
            if getattr(self, name).shape != (rows,):
                raise ValueError(f"{name} has shape {tuple(getattr(self, name).shape)}, expected ({rows},)")
        if self.prompt_ids.shape != self.prompt_mask.shape or self.prompt_ids.shape[0] != rows:
            raise ValueError(
                f"prompt_ids {tuple(self.prompt_ids.shape)} and prompt_mask {tuple(self.prompt_mask.shape)} "
                f"must agree and have {rows} rows"
            )
        if len(self.finish_reasons) != rows:
            raise ValueError(f"expected {rows} finish reasons, got {len(self.finish_reasons)}")

    def __len__(self) -> int:
        return self.completion_ids.shape[0]

    @property
    def lengths(self) -> Tensor:
        """[B] int64: valid response tokens a row."""
        return self.response_mask.sum(dim=1)

    @property
    def num_valid_tokens(self) -> int:
        """N_valid of Eq. 84 for this batch."""
        return int(self.response_mask.sum())

    def prompt_token_ids(self, row: int) -> list[int]:
        """Prompt ids of one row, without padding."""
        return self.prompt_ids[row][self.prompt_mask[row]].tolist()

    def completion_token_ids(self, row: int) -> list[int]:
        """Committed ids of one row, the end token included, without padding."""
        return self.completion_ids[row][self.response_mask[row]].tolist()

    def select(self, rows: Sequence[int] | Tensor) -> RolloutBatch:
        """The batch of the given rows, in the given order, with the same widths."""
        index = torch.as_tensor(rows, dtype=torch.long)
        chosen: dict[str, Any] = {name: getattr(self, name)[index] for name in TENSOR_FIELDS}
        return replace(self, **chosen, finish_reasons=tuple(self.finish_reasons[i] for i in index.tolist()))

    @staticmethod
    def concatenate(batches: Sequence[RolloutBatch]) -> RolloutBatch:
        """Join batches of one request; rows keep their order, widths grow to the largest.

        Raises:
            ValueError: If there is no batch, or if version, radius or seed differ.
        """
        if not batches:
            raise ValueError("expected at least one batch to concatenate, got none")
        first = batches[0]
        for batch in batches[1:]:
            for name in ("student_version", "trust_region_radius", "seed"):
                if getattr(batch, name) != getattr(first, name):
                    raise ValueError(
                        f"batches of different requests cannot be joined: {name} is {getattr(first, name)} "
                        f"and {getattr(batch, name)}"
                    )
        prompt_width = max(batch.prompt_ids.shape[1] for batch in batches)
        width = max(batch.completion_ids.shape[1] for batch in batches)
        joined: dict[str, Any] = {}
        for name in TENSOR_FIELDS:
            values = [getattr(batch, name) for batch in batches]
            if name in PROMPT_FIELDS:
                values = [_pad(value, prompt_width, left=True) for value in values]
            elif name in TOKEN_FIELDS:
                values = [_pad(value, width, left=False) for value in values]
            joined[name] = torch.cat(values)
        reasons = tuple(reason for batch in batches for reason in batch.finish_reasons)
        return replace(first, **joined, finish_reasons=reasons)


PROMPT_FIELDS = ("prompt_ids", "prompt_mask")
ROW_FIELDS = ("prompt_keys", "sample_indices")
TOKEN_FIELDS = (
    "completion_ids",
    "response_mask",
    "proposal_ids",
    "correction_mask",
    "student_logprobs",
    "behavior_logprobs",
    "teacher_logprobs",
    "teacher_mode_ids",
    "beta",
    "kl",
    "tv",
    "acceptance_probability",
    "proposal_logprobs",
    "proposal_teacher_logprobs",
    "mode_student_logprobs",
    "mode_teacher_logprobs",
)
TENSOR_FIELDS = PROMPT_FIELDS + TOKEN_FIELDS + ROW_FIELDS


def fill_value(dtype: torch.dtype) -> int | float | bool:
    """What padding of a field of this dtype holds: False, -1 or NaN."""
    if dtype == torch.bool:
        return False
    return FILL["float"] if dtype.is_floating_point else FILL["long"]


def _pad(value: Tensor, width: int, left: bool) -> Tensor:
    missing = width - value.shape[1]
    if missing == 0:
        return value
    padding = value.new_full((value.shape[0], missing), fill_value(value.dtype))
    return torch.cat([padding, value] if left else [value, padding], dim=1)
