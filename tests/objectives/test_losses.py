"""Losses against autograd of the exact objectives, with clamps off."""

import math

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


def test_expected_log_ratio_is_the_reverse_kl():
    # Eq. 26-28, by hand: p = (1/2, 1/4, 1/4), T = (1/4, 1/4, 1/2).
    log_p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    log_t = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).log()
    k1 = -log_ratio_advantage(log_p, log_t, None)[0]
    assert k1.tolist() == pytest.approx([math.log(2), 0.0, -math.log(2)])
    assert float(log_p.exp() @ k1) == pytest.approx(0.25 * math.log(2))
    # And for laws of any shape, the estimator's mean under p is the value of KL(p || T), term by term.
    for seed in range(20):
        logits, log_t = setup(vocab=2 + seed, seed=seed)
        log_p = torch.log_softmax(logits.detach(), dim=-1)
        k1 = -log_ratio_advantage(log_p, log_t, None)[0]
        p, t = log_p.exp().tolist(), log_t.exp().tolist()
        exact = math.fsum(a * math.log(a / b) for a, b in zip(p, t, strict=True))
        assert float(log_p.exp() @ k1) == pytest.approx(exact, rel=1e-12)
        # Under T the same log-ratio has the mean -KL(T || p): the sample must come from p.
        assert float(log_t.exp() @ k1) < 0 < exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_masked", [1, 4])
def test_losses_of_masked_logits_have_finite_gradients(dtype, num_masked):
    """Logits of -inf (padding ids, say) get gradient 0, the others the one that they have without them."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(6, 5, generator=generator, dtype=dtype)
    teacher_logprobs = torch.tensor([-1.0, -30.0, -torch.inf, -1e-3, -2.0, -0.5], dtype=dtype)
    targets = torch.tensor([0, 1, 2, 3, 4, 0])

    def gradient(logits):
        log_pi = torch.log_softmax(logits, dim=-1).gather(1, targets.unsqueeze(1)).squeeze(1)
        losses, _ = reverse_kl_loss(log_pi, teacher_logprobs, clip=10.0)
        total = losses.sum() + teacher_mode_loss(log_pi).sum()
        assert torch.isfinite(total)
        return torch.autograd.grad(total, logits)[0]

    alone = gradient(values.clone().requires_grad_())
    masked = torch.cat([values, torch.full((6, num_masked), -torch.inf, dtype=dtype)], dim=1).requires_grad_()
    whole = gradient(masked)
    assert not whole[:, 5:].any()
    assert torch.allclose(whole[:, :5], alone, atol=1e-5 if dtype == torch.float32 else 1e-13)


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
