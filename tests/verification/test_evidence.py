"""E-values: fair on the null, growing under other laws, and the rank transform uniform for any law."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from saki.verification.evidence import NUM_BINS, EventEvidence, UniformEvidence, mean_log_e
from saki.verification.laws import rank_uniforms


def uniforms(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_expectation_of_an_event_e_value_is_one():
    """Enumerated over all outcomes of four events with different probabilities."""
    probabilities = torch.tensor([0.02, 0.3, 0.5, 0.9], dtype=torch.float64)
    total = 0.0
    for code in range(16):
        events = torch.tensor([bool(code >> i & 1) for i in range(4)])
        weight = float(torch.where(events, probabilities, 1 - probabilities).prod())
        evidence = EventEvidence()
        evidence.add(events, probabilities)
        total += weight * math.exp(evidence.log_e)
    assert total == pytest.approx(1.0, abs=1e-12)


def test_expectation_of_a_uniform_e_value_is_one():
    """Enumerated over all bin histories of two draws."""
    total = 0.0
    for bins in itertools.product(range(NUM_BINS), repeat=2):
        evidence = UniformEvidence()
        evidence.add((torch.tensor(bins).double() + 0.5) / NUM_BINS)
        total += math.exp(evidence.log_e) / NUM_BINS**2
    assert total == pytest.approx(1.0, abs=1e-9)


def test_slack_only_makes_the_claim_easier():
    probabilities, events = uniforms(200), uniforms(200, seed=1) < 0.5
    strict, loose = EventEvidence(), EventEvidence(slack=0.05)
    for evidence in (strict, loose):
        evidence.add(events, probabilities)
    assert loose.log_e < strict.log_e


def test_other_rates_are_refused_and_right_ones_are_not():
    probabilities = 0.1 * uniforms(5000)
    right, wrong = EventEvidence(), EventEvidence()
    right.add(uniforms(5000, seed=2) < probabilities, probabilities)
    wrong.add(uniforms(5000, seed=2) < 1.5 * probabilities, probabilities)
    assert right.log_e < math.log(100)
    assert wrong.log_e > math.log(1e6)


def test_impossible_events_refuse_at_once():
    for event, probability in ((True, 0.0), (False, 1.0)):
        evidence = EventEvidence()
        evidence.add(torch.tensor([event]), torch.tensor([probability]))
        assert evidence.log_e == math.inf


def test_uniform_evidence():
    fair, squeezed = UniformEvidence(), UniformEvidence()
    fair.add(uniforms(5000))
    squeezed.add(uniforms(5000) ** 1.15)
    assert fair.log_e < 0
    assert squeezed.log_e > math.log(1e6)


def test_ranks_of_draws_are_uniform_and_those_of_other_laws_are_not():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4000, 7, generator=generator, dtype=torch.float64)
    logits[:, 3] = -torch.inf
    p = torch.softmax(logits, dim=1)
    order = torch.randn(4000, 7, generator=generator, dtype=torch.float64).round()  # with ties
    right, wrong = UniformEvidence(), UniformEvidence()
    right.add(rank_uniforms(p, order, torch.multinomial(p, 1, generator=generator).squeeze(1), uniforms(4000)))
    other = torch.softmax(logits + 0.3 * order, dim=1)
    wrong.add(rank_uniforms(p, order, torch.multinomial(other, 1, generator=generator).squeeze(1), uniforms(4000)))
    assert right.log_e < 0
    assert wrong.log_e > math.log(1e6)


def test_mean_of_e_values():
    assert mean_log_e([0.0, math.log(3.0)]) == pytest.approx(math.log(2.0))
    assert mean_log_e([-math.inf, 0.0]) == pytest.approx(-math.log(2.0))
