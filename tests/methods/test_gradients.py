"""Each method's loss and gradient against autograd of what it says it minimises, on one enumerated prefix in float64.

A prefix has student p (the policy's softmax), teacher T and initial student ref over V tokens. The V tokens stand for
the V possible draws, so weighting them by p gives exact expectations.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from saki.functional import kl_divergence
from saki.methods import FULL_REVERSE_KL, REVERSE_KL, VocabularyBranch, get_method, method_names
from saki.methods.candidates import PROPOSAL
from saki.methods.paper import SAKI
from saki.objectives import TokenTargets

V = 6


@pytest.fixture
def prefix():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(V, generator=generator, dtype=torch.float64, requires_grad=True)
    log_t, log_ref = (
        torch.log_softmax(torch.randn(V, generator=generator, dtype=torch.float64) * 1.5, dim=-1) for _ in range(2)
    )
    return logits, log_t, log_ref


def losses(method, prefix, branch, clip=None):
    """Loss of each of the V possible tokens under one branch, with gradient to the logits."""
    logits, log_t, log_ref = prefix
    log_p = torch.log_softmax(logits, dim=-1)
    tokens = torch.arange(V)
    targets = TokenTargets(
        completion_ids=tokens,
        teacher_mode_ids=log_t.argmax().expand(V),
        teacher_logprobs=log_t,
        student_logprobs=log_p.detach(),
        policy_logprobs=log_p.detach(),
        reference_logprobs=log_ref,
        teacher_sample_ids=tokens,
        teacher_entropy=torch.zeros(V, dtype=torch.float64),
        proposal_ids=tokens,
        proposal_teacher_logprobs=log_t,
    )
    routes = torch.full((V,), branch)
    chosen = log_p[method.target_ids(routes, targets)]
    token, token_clamped = method.token_losses(chosen, routes, targets, clip)
    laws = log_p.expand(V, V)
    whole, whole_clamped = method.vocabulary_losses(
        laws, lambda rows: log_t.expand(len(rows), V), routes, targets, clip
    )
    return token + whole, token_clamped | whole_clamped


def gradient(value, prefix):
    return torch.autograd.grad(value, prefix[0], retain_graph=True)[0]


def expected(method, prefix, branch=0):
    """Gradient of the loss, in expectation over y ~ p."""
    values, _ = losses(method, prefix, branch)
    return gradient((torch.softmax(prefix[0], dim=-1).detach() * values).sum(), prefix)


def reverse_kl(prefix):
    return kl_divergence(torch.log_softmax(prefix[0], dim=-1), prefix[1])


def forward_kl(prefix):
    return kl_divergence(prefix[1], torch.log_softmax(prefix[0], dim=-1))


@pytest.mark.parametrize("name", ["opd", "trb", "saki", "vopd", "opd_full", "trb_full", "saki_rkl_full"])
def test_expected_gradient_of_the_first_branch_is_that_of_reverse_kl(name, prefix):
    assert torch.allclose(expected(get_method(name), prefix), gradient(reverse_kl(prefix), prefix), atol=1e-12)


def coupled_gradient(method, prefix, log_q):
    """Expected gradient of a method's loss over the maximal coupling of p with q: pairs (z, y) enumerated."""
    log_p = torch.log_softmax(prefix[0], dim=-1)
    p, q = log_p.detach().exp(), log_q.exp()
    kept, residual = torch.minimum(p, q), (q - p).clamp(min=0)
    proposals, committed = torch.meshgrid(torch.arange(V), torch.arange(V), indexing="ij")
    weights = torch.diag(kept) + (p - kept).unsqueeze(1) * (residual / residual.sum())
    assert torch.allclose(weights.sum(dim=1), p)
    assert torch.allclose(weights.sum(dim=0), q)
    proposals, committed = proposals.flatten(), committed.flatten()
    targets = TokenTargets(
        completion_ids=committed,
        teacher_mode_ids=prefix[1].argmax().expand(V * V),
        teacher_logprobs=prefix[1][committed],
        student_logprobs=log_p.detach()[committed],
        policy_logprobs=log_p.detach()[committed],
        proposal_ids=proposals,
        proposal_teacher_logprobs=prefix[1][proposals],
    )
    routes = torch.zeros(V * V, dtype=torch.long)
    values, _ = method.token_losses(log_p[method.target_ids(routes, targets)], routes, targets, None)
    return gradient((weights.flatten() * values).sum(), prefix)


def test_the_loss_on_proposals_has_the_gradient_of_reverse_kl_at_guided_prefixes_and_that_of_trb_has_not(prefix):
    log_p = torch.log_softmax(prefix[0].detach(), dim=-1)
    log_q = torch.log_softmax(0.5 * log_p + 0.5 * prefix[1], dim=-1)
    exact = gradient(reverse_kl(prefix), prefix)
    assert torch.allclose(coupled_gradient(PROPOSAL, prefix, log_q), exact, atol=1e-12)
    assert (coupled_gradient(get_method("trb"), prefix, log_q) - exact).abs().max() > 0.05


def test_full_reverse_kl_has_the_expected_k1_gradient_at_every_token(prefix):
    values, _ = losses(get_method("opd_full"), prefix, 0)
    for token in range(V):
        assert torch.allclose(gradient(values[token], prefix), expected(get_method("opd"), prefix), atol=1e-12)


@pytest.mark.parametrize(("name", "branch"), [("skd", 0), ("saki_full", 1)])
def test_full_forward_kl(name, branch, prefix):
    values, _ = losses(get_method(name), prefix, branch)
    assert values.tolist() == pytest.approx([float(forward_kl(prefix).detach())] * V)
    # grad KL(T || p) by the logits is p - T.
    exact = torch.softmax(prefix[0], dim=-1).detach() - prefix[1].exp()
    assert torch.allclose(gradient(values[0], prefix), exact, atol=1e-12)


def test_skd_direction(prefix):
    reverse = get_method("skd", {"direction": "reverse", "top_k": 3})
    assert reverse.top_k == 3
    assert reverse.branches == (FULL_REVERSE_KL,)
    assert torch.allclose(
        gradient(losses(reverse, prefix, 0)[0][0], prefix), gradient(reverse_kl(prefix), prefix), atol=1e-12
    )


def test_teacher_sampled_expected_gradient_is_that_of_forward_kl(prefix):
    values, _ = losses(get_method("teacher_sampled"), prefix, 1)  # token v stands for the draw v ~ T
    drawn = gradient((prefix[1].exp() * values).sum(), prefix)
    assert torch.allclose(drawn, gradient(forward_kl(prefix), prefix), atol=1e-12)


@pytest.mark.parametrize("name", ["saki", "random_tm", "tv_weighted_tm", "saki_rkl_full"])
def test_teacher_mode_branch(name, prefix):
    values, _ = losses(get_method(name), prefix, 1)
    mode = int(prefix[1].argmax())
    assert torch.allclose(values, -torch.log_softmax(prefix[0], dim=-1)[mode].expand(V))


def test_saki_weighted_gives_the_mode_the_log_ratio_of_the_committed_token(prefix):
    values, clamped = losses(get_method("saki_weighted"), prefix, 1)
    log_p = torch.log_softmax(prefix[0], dim=-1)
    mode_loss = -log_p[int(prefix[1].argmax())]
    weights = (prefix[1] - log_p.detach()).clamp(min=0)
    assert 0 < int((weights == 0).sum()) < V  # both signs of the log-ratio are there
    assert torch.allclose(values, weights * mode_loss)
    assert not clamped.any()
    for token in range(V):  # the weight is detached
        exact = weights[token] * gradient(mode_loss, prefix)
        assert torch.allclose(gradient(values[token], prefix), exact, atol=1e-12)
    clipped, clamped = losses(get_method("saki_weighted"), prefix, 1, clip=0.5)
    assert torch.allclose(clipped, weights.clamp(max=0.5) * mode_loss)
    assert torch.equal(clamped, weights > 0.5)


def test_exopd(prefix):
    ones = get_method("exopd", {"exopd_lambda": 1.0})
    assert torch.equal(losses(ones, prefix, 0)[0], losses(get_method("opd"), prefix, 0)[0])
    assert torch.equal(losses(ones, prefix, 0, clip=0.5)[0], losses(get_method("opd"), prefix, 0, clip=0.5)[0])
    # With lambda the expected gradient is that of sum p [log p - lambda log T + (lambda - 1) log ref].
    logits, log_t, log_ref = prefix
    log_p = torch.log_softmax(logits, dim=-1)
    objective = (log_p.exp() * (log_p - 1.25 * log_t + 0.25 * log_ref)).sum()
    assert torch.allclose(expected(get_method("exopd"), prefix), gradient(objective, prefix), atol=1e-12)
    assert get_method("exopd").options == (("exopd_lambda", 1.25),)
    # the clip bounds the final advantage
    log_ratio = log_t - log_p.detach()
    final = (log_ratio + 0.25 * (log_t - log_ref)).clamp(-0.5, 0.5)
    values, clamped = losses(get_method("exopd"), prefix, 0, clip=0.5)
    assert torch.allclose(values, -final * log_p)
    assert clamped.any()


def test_power_opd(prefix):
    log_p, log_t = torch.log_softmax(prefix[0], dim=-1), prefix[1]
    values, _ = losses(get_method("power_opd", {"power_exponent": 0.5}), prefix, 0)
    assert torch.allclose(values, -2 * (log_t.exp().sqrt() - log_p.detach().exp().sqrt()) * log_p)
    zero = losses(get_method("power_opd", {"power_exponent": 0}), prefix, 0)[0]
    assert torch.equal(zero, losses(get_method("opd"), prefix, 0)[0])
    small = expected(get_method("power_opd", {"power_exponent": 1e-7}), prefix)
    assert torch.allclose(small, expected(get_method("opd"), prefix), atol=1e-5)


def test_entropy_aware_adds_forward_kl(prefix):
    method = get_method("entropy_aware", {"top_k": V})
    low, high = (losses(method, prefix, branch)[0] for branch in (0, 1))
    assert torch.allclose(low, losses(get_method("opd"), prefix, 0)[0])
    assert torch.allclose(high - low, forward_kl(prefix).expand(V))
    both = gradient(reverse_kl(prefix), prefix) + gradient(forward_kl(prefix), prefix)
    assert torch.allclose(expected(method, prefix, 1), both, atol=1e-12)


def test_entropy_aware_cuts_the_teacher_to_its_top_tokens(prefix):
    """Their probabilities are made to sum to 1; the student's stay those among the whole vocabulary."""
    cut = get_method("entropy_aware", {"top_k": 2, "forward_weight": 0.5})
    low, high = (losses(cut, prefix, branch)[0] for branch in (0, 1))
    log_p, top = torch.log_softmax(prefix[0], dim=-1), prefix[1].argsort(descending=True)[:2]
    law = prefix[1][top].exp() / prefix[1][top].exp().sum()
    exact = 0.5 * (law * (law.log() - log_p[top])).sum()
    assert torch.allclose(high - low, exact.expand(V))
    assert torch.allclose(gradient((high - low)[0], prefix), gradient(exact, prefix), atol=1e-12)


def test_aopd_looks_at_the_teachers_top_tokens_where_it_likes_the_token_less(prefix):
    """1/K sum T (log T - log pi) over the top K, not made to sum to 1."""
    values, _ = losses(get_method("aopd", {"top_k": 2}), prefix, 1)
    log_p, top = torch.log_softmax(prefix[0], dim=-1), prefix[1].argsort(descending=True)[:2]
    exact = (prefix[1][top].exp() * (prefix[1][top] - log_p[top])).sum() / 2
    assert torch.allclose(values, exact.expand(V))
    whole, _ = losses(get_method("aopd", {"top_k": V}), prefix, 1)
    assert torch.allclose(whole, forward_kl(prefix).expand(V) / V)
    more, _ = losses(get_method("aopd", {"top_k": 1000}), prefix, 1)  # than there are tokens
    assert torch.equal(more, whole)
    assert torch.equal(losses(get_method("aopd"), prefix, 0)[0], losses(get_method("opd"), prefix, 0)[0])


def test_opsa_pushes_down_what_it_is_given_and_reads_no_teacher(prefix):
    method = get_method("opsa", {"opsa_advantage": -2.0})
    values, _ = losses(method, prefix, 0)
    assert torch.allclose(values, 2.0 * torch.log_softmax(prefix[0], dim=-1))
    other = (prefix[0], prefix[1].flip(0), prefix[2])
    assert torch.equal(values, losses(method, other, 0)[0])
    assert not gradient(losses(method, prefix, 1)[0].sum(), prefix).any()


@pytest.mark.parametrize("advantage", ["power_opd", "vopd"])
def test_saki_with_another_advantage_is_one_line(advantage, prefix):
    method = get_method("saki", {"advantage": advantage})
    assert torch.equal(losses(method, prefix, 0)[0], losses(get_method(advantage), prefix, 0)[0])
    assert torch.equal(losses(method, prefix, 1)[0], losses(SAKI, prefix, 1)[0])
    own = replace(SAKI, name="mine", branches=(get_method(advantage).branches[0], SAKI.branches[1]))
    assert torch.equal(losses(own, prefix, 0)[0], losses(method, prefix, 0)[0])


def test_clip_bounds_every_sampled_advantage(prefix):
    for name in method_names():
        method = get_method(name)
        if isinstance(method.branches[0], VocabularyBranch) and name != "vopd":
            continue
        values, clamped = losses(method, prefix, 0, clip=1e-3)
        log_p = torch.log_softmax(prefix[0], dim=-1).detach()
        bound = 2e-3 if name == "vopd" else 1e-3  # a clamped log-ratio less the mean of such
        assert bool((values.abs() <= bound * log_p.abs() + 1e-12).all()), name
        assert clamped.any(), name


def test_saki_at_radius_zero_is_opd_by_construction():
    """Without corrections every token goes to the first branch, and that is opd's."""
    assert get_method("saki").branches[0] is get_method("opd").branches[0] is REVERSE_KL
