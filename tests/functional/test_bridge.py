"""The bridge: normalisation, the radius kept, both end points exact, hostile rows, both solvers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saki.functional import (
    bridge_log_ratio,
    kl_divergence,
    normalized_log_probs,
    pinsker_bound,
    solve_bridge,
    solve_bridge_bisection,
    total_variation,
)

SHORTFALL = 2e-4
"""How far below the radius KL may stay, relative, unless an end point was selected (SPEC 2)."""


def random_pair(vocab, rows, seed, scale=3.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    sharpness = scale * torch.rand(rows, 1, generator=generator) + 0.1
    p = torch.randn(rows, vocab, generator=generator) * sharpness
    t = torch.randn(rows, vocab, generator=generator) * sharpness * 1.5
    return normalized_log_probs(p.to(dtype)), normalized_log_probs(t.to(dtype))


def log_q(log_p, log_t, bridge):
    log_ratio = bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)
    return torch.where(log_p > -torch.inf, log_p + log_ratio, -torch.inf)


def check(log_p, log_t, radius, bridge):
    """Everything that must hold, measured in float64 from the result alone."""
    q = log_q(log_p, log_t, bridge)
    assert torch.allclose(q.exp().sum(dim=-1), torch.ones(()).double(), atol=1e-10, rtol=0)
    kl = kl_divergence(q, log_p)
    assert bool((kl <= radius).all())
    inner = (bridge.beta > 0) & (bridge.beta < 1)
    assert bool((kl[inner] >= radius * (1 - SHORTFALL)).all())
    assert torch.allclose(bridge.kl, kl, atol=1e-12, rtol=1e-6)
    tv = total_variation(q, log_p)
    assert torch.allclose(bridge.tv, tv, atol=1e-12, rtol=1e-9)
    assert bool((tv <= pinsker_bound(radius) * (1 + 1e-9)).all())


@pytest.mark.parametrize("radius", [1e-8, 1e-6, 4e-4, 0.02, 0.1, 0.5, 10.0])
@pytest.mark.parametrize("vocab", [2, 3, 36, 4096, 151_936])
def test_radius_is_kept_and_used(vocab, radius):
    log_p, log_t = random_pair(vocab, rows=max(2, min(2000, 200_000 // vocab)), seed=vocab)
    check(log_p, log_t, radius, solve_bridge(log_p, log_t, radius))


def test_beta_agrees_with_a_fine_bisection():
    log_p, log_t = random_pair(50, 500, seed=1)
    newton, fine = solve_bridge(log_p, log_t, 0.02), solve_bridge_bisection(log_p, log_t, 0.02, num_waves=45)
    assert torch.allclose(newton.beta, fine.beta, atol=1e-5)
    assert torch.allclose(newton.kl, fine.kl, rtol=1e-5)


def test_sixteen_waves_stay_feasible_and_fall_short():
    log_p, log_t = random_pair(50, 500, seed=2)
    paper = solve_bridge_bisection(log_p, log_t, 0.02)
    newton = solve_bridge(log_p, log_t, 0.02)
    assert bool((paper.kl <= 0.02).all())
    assert bool((paper.beta <= newton.beta + 1e-6).all())
    assert float((newton.beta - paper.beta).max()) < 2**-15


def test_closed_form_for_two_tokens():
    # q_b on {0, 1} has log-odds (1 - b) l_p + b l_t; invert KL(q||p) = radius for q directly.
    log_p = torch.tensor([0.5, 0.5]).double().log()
    log_t = torch.tensor([0.9, 0.1]).double().log()
    beta = 0.3
    odds = (1 - beta) * 0.0 + beta * math.log(9.0)
    q = 1 / (1 + math.exp(-odds))
    radius = q * math.log(q / 0.5) + (1 - q) * math.log((1 - q) / 0.5)
    assert float(solve_bridge(log_p, log_t, radius).beta) == pytest.approx(beta, rel=1e-5)


def test_radius_zero_is_the_student_exactly():
    log_p, log_t = random_pair(7, 20, seed=3)
    bridge = solve_bridge(log_p, log_t, 0.0)
    assert torch.equal(bridge.beta, torch.zeros(20).double())
    assert torch.equal(log_q(log_p, log_t, bridge), log_p)
    assert torch.equal(bridge.tv, torch.zeros(20).double())
    assert torch.equal(bridge.kl, torch.zeros(20).double())


def test_teacher_inside_the_region_is_selected_exactly():
    log_p, log_t = random_pair(7, 20, seed=4)
    bridge = solve_bridge(log_p, log_t, float(kl_divergence(log_t, log_p).max()) * 1.001)
    assert torch.equal(bridge.beta, torch.ones(20).double())
    assert torch.allclose(log_q(log_p, log_t, bridge), log_t, atol=1e-14)


def test_equal_laws_need_no_correction():
    log_p, _ = random_pair(11, 20, seed=5)
    bridge = solve_bridge(log_p, log_p.clone(), 0.02)
    ratio = bridge_log_ratio(log_p, log_p, bridge.beta, bridge.log_partition)
    assert torch.equal(bridge.beta, torch.ones(20).double())
    assert torch.equal(ratio, torch.zeros_like(ratio))
    assert float(bridge.tv.max()) == 0.0


def probs(*values):
    return torch.tensor(values, dtype=torch.float64).log()


def test_disjoint_supports_keep_the_student():
    bridge = solve_bridge(probs(0.5, 0.5, 0, 0), probs(0, 0, 0.5, 0.5), 0.5)
    assert float(bridge.beta) == 0.0
    assert float(bridge.tv) == 0.0


def test_teacher_zeros_outside_the_budget_keep_the_student():
    # -log p(C) = log 2 = 0.69 > 0.5.
    assert float(solve_bridge(probs(0.5, 0.25, 0.25), probs(0, 0.5, 0.5), 0.5).beta) == 0.0


def test_teacher_zeros_inside_the_budget_are_honoured():
    log_p, log_t = probs(0.05, 0.45, 0.5), probs(0, 0.9, 0.1)
    bridge = solve_bridge(log_p, log_t, 0.2)
    q = log_q(log_p, log_t, bridge)
    assert float(q[0]) == -math.inf
    assert 0 < float(bridge.beta) < 1
    check(log_p.unsqueeze(0), log_t.unsqueeze(0), 0.2, solve_bridge(log_p.unsqueeze(0), log_t.unsqueeze(0), 0.2))


def test_student_zeros_restrict_the_teacher():
    # T on the support of p is (0.5, 0.5) after renormalising: inside the region.
    log_p, log_t = probs(0.45, 0.55, 0), probs(0.25, 0.25, 0.5)
    bridge = solve_bridge(log_p, log_t, 0.02)
    assert float(bridge.beta) == 1.0
    assert torch.allclose(log_q(log_p, log_t, bridge).exp(), torch.tensor([0.5, 0.5, 0.0]).double())


def test_one_hot_laws():
    one_hot, other = probs(1, 0, 0), probs(0.2, 0.4, 0.4)
    assert float(solve_bridge(one_hot, other, 0.02).beta) == 1.0  # T restricted to {0} is p
    assert float(solve_bridge(other, one_hot, 0.02).beta) == 0.0  # -log p(C) = 1.6
    assert float(solve_bridge(one_hot, probs(0, 1, 0), 0.02).beta) == 0.0


def test_a_nan_row_stays_alone():
    log_p, log_t = random_pair(5, 3, seed=6)
    clean = solve_bridge(log_p, log_t, 0.02)
    log_p[1, 2] = torch.nan
    bridge = solve_bridge(log_p, log_t, 0.02)
    assert torch.isnan(bridge.beta).tolist() == [False, True, False]
    for row in (0, 2):
        assert float(bridge.beta[row]) == float(clean.beta[row])


def test_rows_are_independent_of_their_batch():
    log_p, log_t = random_pair(64, 200, seed=7)
    whole = solve_bridge(log_p, log_t, 0.02)
    for row in range(0, 200, 17):
        alone = solve_bridge(log_p[row : row + 1], log_t[row : row + 1], 0.02)
        assert float(alone.beta[0]) == pytest.approx(float(whole.beta[row]), rel=1e-12)


def test_radius_may_differ_by_row():
    log_p, log_t = random_pair(9, 2, seed=8)
    both = solve_bridge(log_p, log_t, torch.tensor([0.0, 0.02], dtype=torch.float64))
    assert float(both.beta[0]) == 0.0
    assert float(both.beta[1]) == pytest.approx(float(solve_bridge(log_p[1], log_t[1], 0.02).beta), rel=1e-12)


@pytest.mark.parametrize("radius", [-0.1, math.nan, math.inf])
def test_bad_radius_is_refused(radius):
    log_p, log_t = random_pair(4, 1, seed=9)
    with pytest.raises(ValueError, match="radius must be finite"):
        solve_bridge(log_p, log_t, radius)


def test_shapes_and_dtypes_are_refused():
    log_p, log_t = random_pair(4, 2, seed=10)
    with pytest.raises(ValueError, match="share a shape"):
        solve_bridge(log_p, log_t[:, :3], 0.02)
    with pytest.raises(ValueError, match="float64"):
        solve_bridge(log_p.float(), log_t.float(), 0.02)
    with pytest.raises(ValueError, match="num_waves"):
        solve_bridge_bisection(log_p, log_t, 0.02, num_waves=0)


logit = st.one_of(st.floats(-60, 60), st.just(-math.inf))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(2, 12), st.sampled_from([1e-8, 1e-6, 1e-3, 0.02, 0.3, 3.0]))
def test_hostile_rows(data, vocab, radius):
    rows = [
        data.draw(st.lists(logit, min_size=vocab, max_size=vocab).filter(lambda row: max(row) > -math.inf))
        for _ in range(2)
    ]
    log_p, log_t = (normalized_log_probs(torch.tensor([row], dtype=torch.float64)) for row in rows)
    bridge = solve_bridge(log_p, log_t, radius)
    q = log_q(log_p, log_t, bridge)
    kl = float(kl_divergence(q, log_p))
    assert float(q.exp().sum()) == pytest.approx(1.0, abs=1e-9)
    assert kl <= radius * (1 + 1e-9)
    assert float(bridge.tv) <= pinsker_bound(radius) * (1 + 1e-6)
    if 0 < float(bridge.beta) < 1:
        assert kl >= radius * (1 - SHORTFALL)
