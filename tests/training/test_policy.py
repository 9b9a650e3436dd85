"""Log-probs of the policy: chunks, padding on either side, padding ids."""

from __future__ import annotations

import pytest
import torch

from saki.models import tiny_qwen3
from saki.training.policy import PolicyHead
from tests.tiny import VOCAB, logprobs_of

PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]
COMPLETIONS = [[10], [11, 12, 13, 14, 15, 1], [16, 1, 17]]
PAD = 1  # also a real token of the completions


def model_of(dtype):
    return tiny_qwen3(VOCAB + 5, seed=4, dtype=dtype, scale=0.3)


def inputs_of(layout, more=0):
    """Rows of prompt and completion with padding where the layout says, and ``more`` further columns of it.

    ``"outer"`` is what the collator makes: prompts end and completions begin in one column.
    """
    rows = []
    left_width, right_width = (max(map(len, part)) for part in (PROMPTS, COMPLETIONS))
    length = max(len(p) + len(c) for p, c in zip(PROMPTS, COMPLETIONS, strict=True))
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        text = prompt + completion
        if layout == "outer":
            left, right = left_width - len(prompt), right_width - len(completion)
        else:
            left, right = (length - len(text), 0) if layout == "left" else (0, length - len(text))
        left, right = left + (more if layout != "right" else 0), right + (more if layout != "left" else 0)
        marks = [0] * (left + len(prompt)) + [1] * len(completion) + [0] * right
        rows.append(([PAD] * left + text + [PAD] * right, [0] * left + [1] * len(text) + [0] * right, marks))
    ids, attention, response = (torch.tensor(part) for part in zip(*rows, strict=True))
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": response[:, 1:].bool(),  # the response takes the last positions, all but the first here
    }


TARGETS = torch.tensor([[token, (token * 7) % VOCAB] for completion in COMPLETIONS for token in completion])


def run(dtype, inputs, chunk_tokens=4):
    model = model_of(dtype)
    head = PolicyHead(model, VOCAB, chunk_tokens)
    logprobs = head.read(model, model, inputs, logprobs_of(TARGETS))
    (logprobs * torch.arange(1.0, 1 + TARGETS.numel()).view_as(TARGETS)).sum().backward()
    return logprobs.detach(), {name: p.grad for name, p in model.named_parameters()}


def by_hand():
    """Each row in a plain forward of its own, over the real ids."""
    model = model_of(torch.float64)
    pieces = []
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1, :VOCAB]
        pieces.append(torch.log_softmax(logits, dim=-1))
    logprobs = torch.cat(pieces).gather(1, TARGETS)
    (logprobs * torch.arange(1.0, 1 + TARGETS.numel()).view_as(TARGETS)).sum().backward()
    return logprobs.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("layout", ["outer", "left", "right"])
def test_padding_on_either_side_changes_nothing(layout, more):
    logprobs, gradient = run(torch.float64, inputs_of(layout, more))
    expected, expected_gradient = by_hand()
    assert torch.allclose(logprobs, expected, atol=1e-10, rtol=0)
    for name, value in expected_gradient.items():
        assert torch.allclose(gradient[name], value, atol=1e-8, rtol=0), name  # sums of 20 tokens weighted up to 20


@pytest.mark.parametrize("chunk_tokens", [1, 3, 10, 999])
def test_chunks_change_nothing(chunk_tokens):
    logprobs, gradient = run(torch.float64, inputs_of("outer"), chunk_tokens)
    whole, whole_gradient = run(torch.float64, inputs_of("outer"), 10)
    assert torch.allclose(logprobs, whole, atol=1e-12, rtol=0)
    for name, value in whole_gradient.items():
        assert torch.allclose(gradient[name], value, atol=1e-10, rtol=0), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_padding_ids_get_no_gradient_and_everything_is_finite(dtype):
    """Ids at and above the real vocabulary are -inf in the softmax, wherever the weights would put them."""
    model = model_of(dtype)
    with torch.no_grad():
        model.lm_head.weight[VOCAB:] = 1e4  # their logits would be all that counts
    head = PolicyHead(model, VOCAB, 4)
    logprobs = head.read(model, model, inputs_of("outer"), logprobs_of(TARGETS))
    assert torch.isfinite(logprobs).all()
    ids = torch.arange(VOCAB).expand(len(TARGETS), VOCAB)
    every = head.read(model, model, inputs_of("outer"), logprobs_of(ids))
    assert torch.allclose(every.exp().sum(dim=1), torch.ones(len(TARGETS), dtype=every.dtype), atol=1e-5)
    logprobs.sum().backward()
    assert not model.lm_head.weight.grad[VOCAB:].any()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
