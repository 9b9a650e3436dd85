"""A pair so small that every arm runs in a second."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from saki.benchmarking import make_pair, make_workload
from saki.benchmarking.pairs import word_tokenizer
from saki.models import tiny_qwen3

VOCAB = 40
CPU = torch.device("cpu")


@pytest.fixture(scope="package")
def pair():
    def build(side):
        seed, layers = {"student": (1, 1), "teacher": (2, 2)}[side]
        return tiny_qwen3(VOCAB, seed=seed, layers=layers, scale=0.4)

    return dataclasses.replace(
        make_pair("tiny"),
        vocab_size=VOCAB,
        build=build,
        prompt_ids=lambda count, length, seed: [
            tuple((i + j + seed) % VOCAB for j in range(length)) for i in range(count)
        ],
        tokenizer=word_tokenizer(VOCAB),
        description="tests",
    )


@pytest.fixture
def workload(pair):
    def make(lengths=(9, 9, 9, 9), batch_size=4, samples=1, radius=0.1):
        return make_workload(
            pair,
            requests=len(lengths),
            batch_size=batch_size,
            samples_per_prompt=samples,
            prompt_length=5,
            lengths=tuple(lengths),
            radius=radius,
            seed=3,
        )

    return make
