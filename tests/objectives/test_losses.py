"""Losses against autograd of the exact objectives, with clamps off."""

import pytest
import torch

from saki.functional import kl_divergence
from saki.objectives import log_ratio_advantage, reverse_kl_loss, teacher_mode_loss


def setup(vocab=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab, generator=generator, dtype=torch.float64, requires_grad=True)
    log_t = torch.log_softmax(torch.randn(vocab, generator=generator, dtype=torch.float64), dim=-1)
    return logits, log_t


def test_expected_gradient_is_that_of_the_exact_reverse_kl():
    # Eq. 29-35: E_{y~p}[grad L_RKL(y)] = grad KL(p || T).
    logits, log_t = setup()
    log_p = torch.log_softmax(logits, dim=-1)
    losses, clamped = reverse_kl_loss(log_p, log_t, clip=None)
    (sampled,) = torch.autograd.grad((log_p.detach().exp() * losses).sum(), logits, retain_graph=True)
    (exact,) = torch.autograd.grad(kl_divergence(log_p, log_t), logits)
    assert not clamped.any()
    assert torch.allclose(sampled, exact, atol=1e-12)


def test_advantage_is_detached():
    logits, log_t = setup()
    log_p = torch.log_softmax(logits, dim=-1)
    advantage, _ = log_ratio_advantage(log_p, log_t, None)
    assert not advantage.requires_grad
    loss, _ = reverse_kl_loss(log_p[2], log_t[2], None)
    (gradient,) = torch.autograd.grad(loss, logits)
    # grad L = k1 grad log pi (Eq. 35).
    k1 = float(log_p[2].detach() - log_t[2])
    expected = k1 * (torch.eye(6, dtype=torch.float64)[2] - log_p.detach().exp())
    assert torch.allclose(gradient, expected, atol=1e-12)


def test_clamp_bounds_and_is_counted():
    policy = torch.tensor([-1.0, -1.0, -30.0], requires_grad=True)
    teacher = torch.tensor([-2.0, -torch.inf, -1.0])
    losses, clamped = reverse_kl_loss(policy, teacher, clip=10.0)
    assert clamped.tolist() == [False, True, True]
    assert losses.tolist() == pytest.approx([-1.0, -10.0, 300.0])
    losses.sum().backward()
    assert torch.isfinite(policy.grad).all()


def test_teacher_mode_is_plain_likelihood():
    assert teacher_mode_loss(torch.tensor([-0.5, -2.0])).tolist() == [0.5, 2.0]


def test_bad_clip_is_refused():
    with pytest.raises(ValueError, match="advantage_clip"):
        reverse_kl_loss(torch.zeros(1), torch.zeros(1), clip=0.0)
