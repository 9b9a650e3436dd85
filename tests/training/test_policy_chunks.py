"""Log-probs of the policy: a bounded number of logits at once, the same result for any bound, none for no tokens."""

from __future__ import annotations

import pytest
import torch

from saki.training.policy import PolicyHead
from tests.tiny import VOCAB, logprobs_of, tiny_pair

NUM_ROWS, PROMPT, RESPONSE = 3, 4, 9


def inputs(lengths):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(2, VOCAB, (NUM_ROWS, PROMPT + RESPONSE), generator=generator)
    mask = torch.arange(RESPONSE) < torch.tensor(lengths).unsqueeze(1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(PROMPT + RESPONSE).expand(NUM_ROWS, -1),
        "response_mask": mask,
    }


def scored(chunk_tokens, lengths=(9, 4, 6)):
    """Log-probs, gradients, and the most rows of logits that existed at once."""
    student, _ = tiny_pair(torch.float64)
    batch = inputs(lengths)
    rows = []
    head = student.get_output_embeddings()
    project = head.forward

    def counted(hidden):
        logits = project(hidden)
        rows.append(logits.reshape(-1, logits.shape[-1]).shape[0])
        return logits

    head.forward = counted
    targets = batch["input_ids"][:, PROMPT:][batch["response_mask"]].unsqueeze(1)
    logprobs = PolicyHead(student, VOCAB, chunk_tokens).read(student, student, batch, logprobs_of(targets))
    (-logprobs.sum()).backward()
    return logprobs.detach(), [parameter.grad for parameter in student.parameters()], max(rows, default=0)


@pytest.mark.parametrize("chunk", [1, 4, 5])
def test_logits_exist_for_a_chunk_of_tokens_and_the_chunk_changes_nothing(chunk):
    whole, whole_grads, whole_rows = scored(1024)
    logprobs, grads, most = scored(chunk)
    assert whole_rows == 19
    assert most == chunk
    assert torch.allclose(logprobs, whole, atol=1e-12)
    for value, expected in zip(grads, whole_grads, strict=True):
        assert torch.allclose(value, expected, atol=1e-12)


def test_a_micro_batch_without_valid_tokens_adds_zero():
    logprobs, grads, _ = scored(4, lengths=(0, 0, 0))
    assert logprobs.shape == (0, 1)
    assert all(grad is None or not grad.any() for grad in grads)
