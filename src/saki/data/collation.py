"""Turn rows of a rollout into the tensors of one training micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from saki.types import TOKEN_FIELDS, RolloutBatch


class MicroBatch(TypedDict):
    """Tensors of a micro-batch: b rows, prompt width P', completion width T', L = P' + T'.

    Attributes:
        input_ids: [b, L] int64, prompts padded on the left, completions on the right. What made a model give NaN is
            padding here as well: see :func:`collate_rollout`.
        attention_mask: [b, L] int64, 1 on prompt tokens and valid response tokens.
        position_ids: [b, L] int64, number of real tokens before each real token; 0 on the left padding,
            the last value again on the right padding.
        num_completion_positions: T'. The logits at positions L - T' - 1 .. L - 2 predict the completion.
        completion_ids: As the further fields, [b, T'] and as in :class:`saki.types.RolloutBatch`, but with 0 or False
            where ``response_mask`` is False.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    num_completion_positions: int
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


def collate_rollout(batch: RolloutBatch, rows: Sequence[int] | Tensor, pad_token_id: int) -> MicroBatch:
    """Collate rows of a rollout, trimmed to the widest prompt and the longest completion among them.

    All masks go by position, never by value: a padding id inside a completion stays a token, and the fills (-1, NaN)
    outside ``response_mask`` become 0, so that they can be gathered and multiplied. *Inside* the mask nothing is
    touched: a NaN there is a value that the rollout does not have (such as ``teacher_logprobs`` of a rollout that
    was not scored), and a loss that uses it should fail.

    Args:
        batch: The rollout.
        rows: Row indices of the micro-batch, at least one.
        pad_token_id: Id on padded positions of ``input_ids``, at least 0.

    Returns:
        The micro-batch. Its completion width is 0 if no row has a valid token.

    Raises:
        ValueError: If there is no row, or ``pad_token_id`` is negative.
    """
    if len(rows) == 0:
        raise ValueError("expected at least one row to collate, got none")
    if pad_token_id < 0:
        raise ValueError(f"pad_token_id must be at least 0, got {pad_token_id}; use PairSpec.pad_token_id")
    chosen = batch.select(rows)
    prompt_width = _width(chosen.prompt_mask.flip(1))
    width = _width(chosen.response_mask)
    prompt_mask = chosen.prompt_mask[:, chosen.prompt_mask.shape[1] - prompt_width :]
    prompt_ids = chosen.prompt_ids[:, chosen.prompt_ids.shape[1] - prompt_width :]
    response_mask = chosen.response_mask[:, :width]
    fields = {name: getattr(chosen, name)[:, :width].masked_fill(~response_mask, 0) for name in TOKEN_FIELDS}

    mask = torch.cat([prompt_mask, response_mask], dim=1)
    ids = torch.cat([prompt_ids, chosen.completion_ids[:, :width]], dim=1)
    broken = torch.tensor([reason == "nan" for reason in chosen.finish_reasons]).unsqueeze(1)
    lengths = response_mask.sum(dim=1, keepdim=True)
    last = torch.arange(width) == lengths - 1
    fed = mask & ~(broken & torch.cat([(lengths == 0).expand_as(prompt_mask), last], dim=1))
    return MicroBatch(
        input_ids=ids.masked_fill(~fed, pad_token_id),
        attention_mask=mask.long(),
        position_ids=(mask.long().cumsum(dim=1) - 1).clamp(min=0),
        num_completion_positions=width,
        **fields,  # type: ignore[typeddict-item]
    )


def _width(mask: Tensor) -> int:
    """Number of leading columns up to the last one that holds a True."""
    used = mask.any(dim=0).nonzero()
    return int(used[-1]) + 1 if used.numel() else 0
