"""Advantages: closed forms, limits and expectations, on enumerated vocabularies in float64."""

import math

import pytest
import torch

from saki.functional import kl_divergence
from saki.objectives import (
    extrapolated_advantage,
    log_ratio_advantage,
    mean_log_ratio,
    power_advantage,
)


def laws(num=3, vocab=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.log_softmax(torch.randn(vocab, generator=generator, dtype=torch.float64), dim=-1) for _ in range(num)]


def test_extrapolation_with_lambda_one_is_the_log_ratio_to_the_bit():
    generator = torch.Generator().manual_seed(1)
    log_p, log_t, log_ref = (-torch.rand(1000, generator=generator) * 20 for _ in range(3))
    log_ref[3], log_t[5] = -torch.inf, -torch.inf
    plain, _ = log_ratio_advantage(log_p, log_t, None)
    assert torch.equal(extrapolated_advantage(log_p, log_t, log_ref, 1.0), plain)


def test_extrapolation_is_the_log_ratio_to_a_sharpened_teacher():
    # A = log [T (T / ref)^(lambda - 1)] - log p: the reverse KL to T^lambda ref^(1 - lambda), up to normalisation.
    log_p, log_t, log_ref = laws()
    target = 1.25 * log_t - 0.25 * log_ref
    assert torch.allclose(extrapolated_advantage(log_p, log_t, log_ref, 1.25), target - log_p, atol=1e-12)


def test_power_is_bounded_sign_consistent_and_tends_to_the_log_ratio():
    log_p, log_t = laws(2)
    plain, _ = log_ratio_advantage(log_p, log_t, None)
    for power in (0.3, 1.0, 2.0):
        value = power_advantage(log_p, log_t, power)
        assert torch.allclose(value, (log_t.exp() ** power - log_p.exp() ** power) / power, atol=1e-12)
        assert torch.equal(value.sign(), plain.sign())
        assert float(value.abs().max()) < 1 / power
    gaps = [float((power_advantage(log_p, log_t, power) - plain).abs().max()) for power in (1e-2, 1e-4, 1e-6)]
    # d/da [(T^a - p^a) / a] at 0 is ((log T)^2 - (log p)^2) / 2, so the gap falls in proportion to a.
    slope = float((log_t**2 - log_p**2).abs().max() / 2)
    assert gaps[1] == pytest.approx(1e-4 * slope, rel=1e-2)
    assert gaps[2] == pytest.approx(1e-6 * slope, rel=1e-2)
    assert torch.equal(power_advantage(log_p, log_t, 0.0), plain)
    with pytest.raises(ValueError, match="power must be"):
        power_advantage(log_p, log_t, -1.0)


def test_the_mean_log_ratio_is_the_negative_kl():
    log_p, log_t = laws(2)
    mean = mean_log_ratio(log_p, log_t, None)
    assert torch.allclose(mean, -kl_divergence(log_p, log_t), atol=1e-12)
    assert torch.equal(mean_log_ratio(log_p, log_t, 50.0), mean)
    clamped = (log_p.exp() * (log_t - log_p).clamp(-0.1, 0.1)).sum(dim=-1)
    assert torch.allclose(mean_log_ratio(log_p, log_t, 0.1), clamped, atol=1e-12)
    assert not torch.allclose(clamped, mean)


def test_the_mean_log_ratio_where_a_law_is_zero():
    log_p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    log_t = torch.tensor([[0.0, 0.5, 0.5]]).log()
    assert mean_log_ratio(log_p, log_t, 10.0).tolist() == [-5.0]
    assert mean_log_ratio(log_p, log_t, None).tolist() == [-math.inf]
