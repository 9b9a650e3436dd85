"""Verification of a tiny pair: it passes as it is, in each precision, and fails on every bug put into the engine."""

from __future__ import annotations

import json

import pytest
import torch

from saki.models import ModelPair, check_architecture, resolve_pair
from saki.types import Prompt
from saki.verification import Settings, verify_pair
from tests.statistical.mutants import ENGINE_MUTANTS
from tests.tiny import tiny_pair, tiny_tokenizer

PROMPTS = [Prompt(key, tuple(2 + (key * 5 + i) % 18 for i in range(1 + key % 4))) for key in range(8)]
SETTINGS = Settings(
    trust_region_radius=0.3, num_generations=8, max_completion_length=12, batch_rows=24, max_tokens=3000, block_size=5
)


def pair_of(dtype=torch.float64):
    student, teacher = tiny_pair(dtype)
    tokenizer = tiny_tokenizer()
    reports = [check_architecture(model.config, type(model)) for model in (student, teacher)]
    return ModelPair(student, teacher, tokenizer, resolve_pair(student, teacher, tokenizer, tokenizer), *reports)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.float64, torch.bfloat16))],
)
def test_a_correct_engine_passes(dtype):
    certificate = verify_pair(pair_of(dtype), PROMPTS, SETTINGS, {"dtype": str(dtype)})
    assert certificate.passed, certificate.to_markdown()
    law = next(check for check in certificate.checks if check.name == "one-step law")
    assert law.figures["tokens"] >= SETTINGS.max_tokens
    assert law.figures["corrections"] > 100
    stored = json.loads(json.dumps(certificate.to_json()))
    assert stored["verdict"] == "pass"
    assert stored["not_checked"]
    assert "| one-step law | pass |" in certificate.to_markdown()


QUICK = ("stale cache after roll-back", "residual drawn from T", "radius of the last request")
MUTANTS = [m if m.name in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in ENGINE_MUTANTS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_bug_in_the_engine_fails(mutant, monkeypatch):
    mutant.apply(monkeypatch)
    certificate = verify_pair(pair_of(), PROMPTS, SETTINGS)
    assert not certificate.passed, certificate.to_markdown()
