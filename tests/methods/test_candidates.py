"""Candidates: each loss by its formula on enumerated laws, in float64, and every record can be had by name."""

from __future__ import annotations

import pytest
import torch

from saki.functional import kl_divergence, total_variation
from saki.methods import COUPLED_KL, FULL_FORWARD_KL, FULL_REVERSE_KL, WEIGHTED_TEACHER_MODE, get_method, method_names
from saki.methods.candidates import (
    BOTH_KL,
    CANDIDATES,
    FORWARD_SHARE,
    JENSEN_SHANNON,
    WEIGHTED_FORWARD_KL,
    mixed_kl,
)
from saki.objectives import TokenTargets

V = 6


@pytest.fixture
def laws():
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(V, generator=generator, dtype=torch.float64, requires_grad=True)
    log_t = torch.log_softmax(torch.randn(V, generator=generator, dtype=torch.float64) * 1.5, dim=-1)
    return logits, log_t


def losses(branch, laws, clip=None):
    """Losses of the V possible committed tokens."""
    logits, log_t = laws
    log_p = torch.log_softmax(logits, dim=-1)
    tokens = torch.arange(V)
    targets = TokenTargets(tokens, log_t.argmax().expand(V), log_t, log_p.detach())
    return branch.loss(log_p.expand(V, V), log_t.expand(V, V), targets, clip)


def gradient(value, laws):
    return torch.autograd.grad(value, laws[0], retain_graph=True)[0]


def test_mixtures_of_the_two_divergences(laws):
    logits, log_t = laws
    log_p = torch.log_softmax(logits, dim=-1)
    reverse, forward = kl_divergence(log_p, log_t), kl_divergence(log_t, log_p)
    for branch, exact in ((BOTH_KL, reverse + forward), (mixed_kl(0.25), 0.75 * reverse + 0.25 * forward)):
        values, clamped = losses(branch, laws)
        assert clamped is None
        assert torch.allclose(values, exact.expand(V))
        assert torch.allclose(gradient(values[0], laws), gradient(exact, laws), atol=1e-12)


def test_jensen_shannon_is_bounded_symmetric_and_by_its_definition(laws):
    logits, log_t = laws
    p, t = torch.softmax(logits, dim=-1), log_t.exp()
    middle = (p + t) / 2
    exact = 0.5 * ((p * (p / middle).log()).sum() + (t * (t / middle).log()).sum())
    values, _ = losses(JENSEN_SHANNON, laws)
    assert torch.allclose(values, exact.expand(V))
    assert torch.allclose(gradient(values[0], laws), gradient(exact, laws), atol=1e-12)
    assert 0 < float(exact.detach()) < torch.log(torch.tensor(2.0))
    masked = torch.tensor([[0.3, 0.1, -torch.inf]], requires_grad=True)
    other = torch.log_softmax(torch.tensor([[1.0, 0.0, -torch.inf]]), dim=-1)
    value = JENSEN_SHANNON.loss(torch.log_softmax(masked, dim=-1), other, None, None)[0]
    (slope,) = torch.autograd.grad(value.sum(), masked)
    assert slope.isfinite().all()
    assert slope.abs().max() > 0
    apart = JENSEN_SHANNON.loss(
        torch.tensor([[0.0, -torch.inf]], requires_grad=True), torch.tensor([[-torch.inf, 0.0]]), None, None
    )[0]
    assert float(apart.detach()) == pytest.approx(float(torch.log(torch.tensor(2.0))))


def test_weighted_forward_kl_keeps_the_positive_log_ratio_detached(laws):
    logits, log_t = laws
    log_p = torch.log_softmax(logits, dim=-1)
    forward = kl_divergence(log_t, log_p)
    weights = (log_t - log_p.detach()).clamp(min=0)
    assert 0 < int((weights == 0).sum()) < V
    values, clamped = losses(WEIGHTED_FORWARD_KL, laws)
    assert not clamped.any()
    for token in range(V):
        assert torch.allclose(values[token], weights[token] * forward)
        assert torch.allclose(gradient(values[token], laws), weights[token] * gradient(forward, laws), atol=1e-12)
    clipped, clamped = losses(WEIGHTED_FORWARD_KL, laws, clip=0.5)
    assert torch.allclose(clipped, weights.clamp(max=0.5) * forward)
    assert torch.equal(clamped, weights > 0.5)


def test_coupled_kl_is_the_mean_of_both_divergences_over_a_maximal_coupling_with_the_teacher(laws):
    logits, log_t = laws
    log_p = torch.log_softmax(logits, dim=-1)
    reverse, forward = kl_divergence(log_p, log_t), kl_divergence(log_t, log_p)
    accepted = torch.minimum(log_p.detach().exp(), log_t.exp())  # P(proposal = token and kept), enumerated
    exact = accepted.sum() * reverse + (1 - accepted.sum()) * forward
    values, clamped = losses(COUPLED_KL, laws)
    assert clamped is None
    assert torch.allclose(values, exact.expand(V))
    assert torch.allclose(gradient(values[0], laws), gradient(exact, laws), atol=1e-12)
    assert 0.1 < float(total_variation(log_p.detach(), log_t)) < 0.9


def test_records():
    found = {name: get_method(f"saki.methods.candidates:{name}") for name in CANDIDATES}
    names = [method.name for method in found.values()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(method_names())
    at_corrections = {
        "WEIGHTED_MODE": WEIGHTED_TEACHER_MODE,
        "FORWARD": FULL_FORWARD_KL,
        "WEIGHTED_FORWARD": WEIGHTED_FORWARD_KL,
        "BOTH": BOTH_KL,
    }
    for name, branch in at_corrections.items():
        assert found[name].branches == (FULL_REVERSE_KL, branch)
        assert found[name].behavior == "bridge"
        assert found[name].router is get_method("saki").router
    claimed = get_method("saki.methods.candidates:COUPLED")
    for student, bridge in (("OPD_MIXED", found["MIXED"]), ("OPD_COUPLED", claimed)):
        assert (found[student].behavior, bridge.behavior) == ("student", "bridge")
        assert found[student].branches == bridge.branches
    assert 0 < FORWARD_SHARE < 1
    assert claimed is get_method("full_coupled")  # studies of the search go on under the name they were begun with
