"""Divergences: values, and finite gradients where a law has zeros."""

import math

import pytest
import torch

from saki.functional import entropy, kl_divergence, pinsker_bound, total_variation, truncated_kl


def test_values():
    a = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).log()
    b = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64).log()
    assert float(kl_divergence(a, b)) == pytest.approx(0.5 * math.log(2))
    assert float(kl_divergence(b, a)) == math.inf
    assert float(total_variation(a, b)) == pytest.approx(0.25)
    assert float(entropy(a)) == pytest.approx(math.log(2))


def test_truncated_kl():
    a = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    b = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    two = [0.5 * math.log(5) + 0.3 * math.log(1.5), 0.4 * math.log(4) + 0.3 * math.log(1.5)]
    assert truncated_kl(a.log(), b.log(), 2).tolist() == pytest.approx(two)
    of_one = [0.625 * math.log(6.25) + 0.375 * math.log(1.875), 4 / 7 * math.log(40 / 7) + 3 / 7 * math.log(15 / 7)]
    assert truncated_kl(a.log(), b.log(), 2, renormalize=True).tolist() == pytest.approx(of_one)
    for renormalize in (False, True):
        whole = truncated_kl(a.log(), b.log(), 9, renormalize=renormalize)
        assert torch.allclose(whole, kl_divergence(a.log(), b.log()))


def reverse_kl(log_p, log_t):
    return kl_divergence(log_p, log_t)


def forward_kl(log_p, log_t):
    return kl_divergence(log_t, log_p)


def distance(log_p, log_t):
    return total_variation(log_p, log_t)


def own_entropy(log_p, log_t):
    return entropy(log_p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("teacher_has_zeros", [False, True])
@pytest.mark.parametrize("divergence", [reverse_kl, forward_kl, distance, own_entropy])
def test_gradients_at_minus_infinity(divergence, teacher_has_zeros, dtype):
    """Masked logits get gradient 0, and the others get the gradient that they have without the masked ones."""
    generator = torch.Generator().manual_seed(0)
    kept = torch.tensor([True, False, True, True, False])
    values = torch.randn(4, 5, generator=generator, dtype=dtype)
    teacher = torch.randn(4, 5, generator=generator, dtype=dtype)
    # Forward KL is infinite where T > 0 = p, whatever the gradient; its teacher shares the mask.
    teacher = teacher.masked_fill(~kept, -torch.inf) if teacher_has_zeros or divergence is forward_kl else teacher
    log_t = torch.log_softmax(teacher, dim=-1)
    logits = values.masked_fill(~kept, -torch.inf).requires_grad_()
    value = divergence(torch.log_softmax(logits, dim=-1), log_t)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert not logits.grad[:, ~kept].any()

    alone = values[:, kept].requires_grad_()
    divergence(torch.log_softmax(alone, dim=-1), log_t[:, kept]).sum().backward()
    assert torch.allclose(logits.grad[:, kept], alone.grad, atol=1e-6 if dtype == torch.float32 else 1e-14)


def test_pinsker_bound():
    assert pinsker_bound(0.02) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="radius"):
        pinsker_bound(-1.0)
