"""Divergences: values, and finite gradients where a law has zeros."""

import math

import pytest
import torch

from saki.functional import entropy, kl_divergence, pinsker_bound, total_variation
from saki.functional.numerics import excess_entropy, normalized_log_probs


def test_values():
    a = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    b = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64).log()
    assert float(kl_divergence(a, b)) == pytest.approx(0.5 * math.log(2))
    assert float(kl_divergence(b, a)) == math.inf
    assert float(total_variation(a, b)) == pytest.approx(0.25)
    assert float(entropy(a)) == pytest.approx(math.log(2))


def test_gradients_are_finite_at_minus_infinity():
    logits = torch.tensor([1.0, 2.0, -torch.inf], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    log_a = torch.log_softmax(logits, dim=-1)
    (kl_divergence(log_a, other) + entropy(log_a)).backward()
    assert torch.isfinite(logits.grad).all()


def test_excess_entropy_is_the_summand_of_kl():
    a = normalized_log_probs(torch.tensor([0.3, -0.2, 1.0]))
    b = normalized_log_probs(torch.tensor([0.1, 0.4, 0.9]))
    assert float((b.exp() * excess_entropy(a - b)).sum()) == pytest.approx(float(kl_divergence(a, b)), rel=1e-12)
    assert float(excess_entropy(torch.tensor(-torch.inf))) == 1.0


def test_pinsker_bound():
    assert pinsker_bound(0.02) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="radius"):
        pinsker_bound(-1.0)
