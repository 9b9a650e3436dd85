"""A tokenizer and an engine that need no model: what the runner sees of both, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from saki.types import Prompt, RolloutBatch, RolloutRequest

STOP = 0


class CharTokenizer:
    """Token id = code point; id 0 stops and decodes to ``<stop>``, id 1 begins plain text."""

    chat_template = "made up"

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool, **_: bool) -> dict[str, list[list[int]]]:
        begin = [1] if add_special_tokens else []
        return {"input_ids": [begin + [ord(char) for char in text] for text in texts]}

    def get_chat_template(self, chat_template=None):
        """The template's text."""
        return chat_template or self.chat_template

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt, enable_thinking) -> str:
        assert not tokenize
        assert add_generation_prompt
        (message,) = messages
        return f"[{message['content']}|{enable_thinking}]"

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join("<stop>" if token == STOP else chr(token) for token in ids)


class KeyedEngine:
    """Completions are one digit that depends on seed, prompt key and sample index only.

    Digits up to 7 are followed by the stop token, 8 and 9 run into the cap of three tokens.
    """

    def __init__(self) -> None:
        self.requests: list[RolloutRequest] = []
        self.asked: list[Sequence[Prompt]] = []

    def digit(self, seed: int, key: int, sample: int) -> int:
        return (seed % 1009 + 7 * key + 3 * sample) % 10

    def generate(self, prompts: Sequence[Prompt], request: RolloutRequest, progress=None) -> RolloutBatch:
        self.requests.append(request)
        self.asked.append(prompts)
        rows = [(prompt, sample) for prompt in prompts for sample in range(request.num_generations)]
        completions = []
        for prompt, sample in rows:
            digit = self.digit(request.seed, prompt.key, sample)
            completions.append([ord(str(digit)), STOP] if digit < 8 else [ord(str(digit))] * 3)
        if progress is not None:
            progress(len(rows) // 2, len(rows))
            progress(len(rows), len(rows))
        return as_batch(rows, completions, request)

    def stats(self):
        raise AssertionError("the runner needs no counters of the engine")


def as_batch(
    rows: Sequence[tuple[Prompt, int]], completions: Sequence[Sequence[int]], request: RolloutRequest
) -> RolloutBatch:
    width = max(map(len, completions))
    prompt_width = max(len(prompt.token_ids) for prompt, _ in rows)
    ids = torch.full((len(rows), width), -1)
    prompt_ids = torch.full((len(rows), prompt_width), -1)
    for row, ((prompt, _), completion) in enumerate(zip(rows, completions, strict=True)):
        ids[row, : len(completion)] = torch.tensor(completion)
        prompt_ids[row, prompt_width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
    mask = ids >= 0
    nothing = torch.full(ids.shape, float("nan"))
    return RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_ids >= 0,
        completion_ids=ids,
        response_mask=mask,
        proposal_ids=ids,
        correction_mask=torch.zeros_like(mask),
        student_logprobs=nothing,
        behavior_logprobs=nothing,
        teacher_logprobs=nothing,
        teacher_mode_ids=torch.full_like(ids, -1),
        beta=nothing,
        kl=nothing,
        tv=nothing,
        acceptance_probability=nothing,
        proposal_logprobs=nothing,
        proposal_teacher_logprobs=nothing,
        mode_student_logprobs=nothing,
        mode_teacher_logprobs=nothing,
        prompt_keys=torch.tensor([prompt.key for prompt, _ in rows]),
        sample_indices=torch.tensor([sample for _, sample in rows]),
        finish_reasons=tuple("stop" if completion[-1] == STOP else "length" for completion in completions),
        student_version=0,
        trust_region_radius=request.trust_region_radius,
        seed=request.seed,
    )


@pytest.fixture
def engine() -> KeyedEngine:
    return KeyedEngine()


@pytest.fixture
def tokenizer() -> CharTokenizer:
    return CharTokenizer()
