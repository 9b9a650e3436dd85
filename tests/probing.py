"""A probe of the tiny pair, for tests of what builds, measures and compares probes."""

from __future__ import annotations

from typing import Any

import torch

from saki.models import ModelPair, check_architecture, resolve_pair
from saki.probe import Probe, ProbeSettings, build_probe
from saki.types import Prompt
from tests.tiny import tiny_pair, tiny_tokenizer

PROMPTS = [Prompt(key, tuple(2 + (key * 5 + i) % 18 for i in range(1 + key % 4))) for key in range(6)]
SETTINGS = {
    "num_pairs": 12,
    "top_k": 3,
    "trust_region_radius": 0.3,
    "num_generations": 4,
    "max_completion_length": 10,
    "batch_rows": 8,
}


def model_pair(dtype: torch.dtype = torch.float32) -> ModelPair:
    """The tiny pair as a command loads it."""
    student, teacher = tiny_pair(dtype)
    tokenizer = tiny_tokenizer()
    reports = [check_architecture(model.config, type(model)) for model in (student, teacher)]
    return ModelPair(student, teacher, tokenizer, resolve_pair(student, teacher, tokenizer, tokenizer), *reports)


def tiny_probe(dtype: torch.dtype = torch.float32, **changes: Any) -> Probe:
    """A probe of 12 + 12 positions, made in a fraction of a second."""
    return build_probe(model_pair(dtype), PROMPTS, ProbeSettings(**{**SETTINGS, **changes}), {"made": "by a test"})
