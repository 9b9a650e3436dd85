"""The rows of a request: one per sample of each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saki.functional.random import RowKeys
from saki.types import Prompt, RolloutRequest


@dataclass(frozen=True)
class Row:
    """One sample of one prompt."""

    prompt: Prompt
    sample_index: int


def expand_rows(prompts: Sequence[Prompt], num_generations: int) -> list[Row]:
    """Rows in prompt-major order."""
    return [
        Row(prompt, index)
        for prompt in prompts
        for index in (prompt.sample_indices if prompt.sample_indices is not None else range(num_generations))
    ]


def row_keys(rows: Sequence[Row], request: RolloutRequest, device: torch.device) -> RowKeys:
    """Identity of the rows in the random numbers."""
    return RowKeys(
        seed=request.seed,
        prompt_keys=torch.tensor([row.prompt.key for row in rows], dtype=torch.long, device=device),
        sample_indices=torch.tensor([row.sample_index for row in rows], dtype=torch.long, device=device),
    )


def padded_prompts(rows: Sequence[Row], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompt ids [B, P] padded on the right with 0 (slots are positions), and lengths [B]."""
    lengths = torch.tensor([len(row.prompt.token_ids) for row in rows], dtype=torch.long)
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : lengths[index]] = torch.tensor(row.prompt.token_ids, dtype=torch.long)
    return ids.to(device), lengths.to(device)


def row_slots(rows: Sequence[Row], request: RolloutRequest) -> int:
    """Cache slots that each row of a request gets: the longest prompt, the cap, and a block beyond it."""
    longest = max(len(row.prompt.token_ids) for row in rows)
    return longest + request.max_completion_length + request.block_size


def check_request(
    prompts: Sequence[Prompt], request: RolloutRequest, vocab_size: int, max_positions: int | None
) -> None:
    """Refuse what the models cannot take.

    Raises:
        ValueError: If there is no prompt, a prompt holds an id outside the vocabulary, or a sequence can grow
            beyond the model's positions.
    """
    if not prompts:
        raise ValueError("a rollout needs at least one prompt, got none")
    for prompt in prompts:
        if min(prompt.token_ids) < 0 or max(prompt.token_ids) >= vocab_size:
            raise ValueError(
                f"prompt {prompt.key} holds the token id {max(prompt.token_ids)}, expected ids in [0, {vocab_size})"
            )
        longest = len(prompt.token_ids) + request.max_completion_length
        if max_positions is not None and longest > max_positions:
            raise ValueError(
                f"prompt {prompt.key} with {len(prompt.token_ids)} tokens and max_completion_length "
                f"{request.max_completion_length} can grow to {longest} tokens, but the model takes {max_positions}; "
                "lower max_completion_length or drop long prompts"
            )
