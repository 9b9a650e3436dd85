"""The bridge: normalisation, the radius kept, both end points exact, hostile rows, both solvers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saki.functional import bridge as solving
from saki.functional import (
    bridge_log_ratio,
    devices,
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
    return normalized_log_probs(p.to(dtype).double()), normalized_log_probs(t.to(dtype).double())


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
    with pytest.raises(ValueError, match="both be float32 or float64"):
        solve_bridge(log_p.float(), log_t, 0.02)
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


def hostile_pair(data, vocab):
    rows = [
        data.draw(st.lists(logit, min_size=vocab, max_size=vocab).filter(lambda row: max(row) > -math.inf))
        for _ in range(2)
    ]
    return [normalized_log_probs(torch.tensor([row], dtype=torch.float64)) for row in rows]


radii = st.floats(-18.0, 2.3).map(math.exp)  # 1.5e-8 to 10 nats


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 9), radii, st.floats(1e-4, 5.0))
def test_a_larger_radius_goes_further(data, vocab, radius, more):
    """beta, KL and TV grow with the radius, whichever end point is selected at either."""
    log_p, log_t = hostile_pair(data, vocab)
    small, large = (solve_bridge(log_p, log_t, value) for value in (radius, radius * (1 + more)))
    assert float(large.beta) >= float(small.beta)
    # Rounding of sums of four digits: logits go up to 60.
    assert float(large.kl) >= float(small.kl) * (1 - 1e-9) - 1e-14
    assert float(large.tv) >= float(small.tv) * (1 - 1e-9) - 1e-12


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 9), radii)
def test_q_lies_between_p_and_t(data, vocab, radius):
    """Between any two tokens of the common support the log-odds of q lie between those of p and T (Eq. 1)."""
    log_p, log_t = hostile_pair(data, vocab)
    q = log_q(log_p, log_t, solve_bridge(log_p, log_t, radius))[0]
    common = torch.isfinite(log_p[0]) & torch.isfinite(log_t[0])
    p, t, q = log_p[0][common], log_t[0][common], q[common]
    odds_p, odds_t, odds_q = (law.unsqueeze(0) - law.unsqueeze(1) for law in (p, t, q))
    slack = 1e-12  # ulps of log-odds up to 120
    assert bool((odds_q >= torch.minimum(odds_p, odds_t) - slack).all())
    assert bool((odds_q <= torch.maximum(odds_p, odds_t) + slack).all())


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 9), radii)
def test_the_names_of_tokens_do_not_matter(data, vocab, radius):
    log_p, log_t = hostile_pair(data, vocab)
    order = torch.tensor(data.draw(st.permutations(range(vocab))))
    bridge, permuted = solve_bridge(log_p, log_t, radius), solve_bridge(log_p[:, order], log_t[:, order], radius)
    # Sums in another order round otherwise, and the solver stops within 1e-6 of its aim.
    assert float(permuted.kl) == pytest.approx(float(bridge.kl), rel=3e-6, abs=1e-14)
    assert float(permuted.tv) == pytest.approx(float(bridge.tv), rel=1e-5, abs=1e-12)
    for end in (0.0, 1.0):
        assert (float(bridge.beta) == end) == (float(permuted.beta) == end)


def kl_to_teacher(law, log_t):
    return float((law * (law.log() - log_t)).sum())


@pytest.mark.parametrize("radius", [1e-6, 0.02, 0.3, 3.0])
@pytest.mark.parametrize("vocab", [2, 5])
def test_no_law_within_the_radius_comes_closer_to_the_teacher(vocab, radius):
    """Eq. 18, with competitors that know nothing of the bridge: they are brought into the region along a line to p.

    KL(.||p) is convex, so the part of a line from p to any law that lies in the region begins at p and ends where
    40 halvings find it. Competitors are random laws, laws close to q, and laws found by a walk that keeps what
    comes closer to T.
    """
    generator = torch.Generator().manual_seed(vocab)
    log_p, log_t = (law[0] for law in random_pair(vocab, 1, seed=vocab, scale=2.0))
    p = log_p.exp()
    bridge = solve_bridge(log_p, log_t, radius)
    q = log_q(log_p, log_t, bridge).exp()
    best = kl_to_teacher(q, log_t)
    # What the solver's margin of 3e-6 of the radius can be worth: d KL(q||T) / d KL(q||p) = -(1 - beta) / beta.
    beta = float(bridge.beta)
    slack = 1e-12 + (0.0 if beta == 1 else 4e-6 * radius * (1 - beta) / beta)

    def within(laws):
        low, high = torch.zeros(len(laws), 1).double(), torch.ones(len(laws), 1).double()
        for _ in range(40):
            middle = (low + high) / 2
            mixed = p + middle * (laws - p)
            inside = kl_divergence(mixed.log(), log_p).unsqueeze(1) <= radius
            low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
        return p + low * (laws - p)

    def noise(rows):
        return torch.randn(rows, vocab, generator=generator, dtype=torch.float64)

    def closeness(laws):
        return (laws * (laws.log() - log_t)).sum(dim=-1)

    random = torch.softmax(3 * noise(2000), dim=-1)
    close = torch.softmax(
        q.log() + 10 ** (-4 * torch.rand(2000, 1, generator=generator).double()) * noise(2000), dim=-1
    )
    assert float(closeness(within(torch.cat([random, close]))).min()) >= best - slack
    # The walk starts at p and comes close to q, so the bound above is no empty one.
    walker, step = p, 1.0
    for _ in range(120):
        tries = within(torch.softmax(walker.log() + step * noise(64), dim=-1))
        found = tries[closeness(tries).argmin()]
        if kl_to_teacher(found, log_t) < kl_to_teacher(walker, log_t):
            walker = found
        else:
            step *= 0.8
        assert kl_to_teacher(walker, log_t) >= best - slack
    start = kl_to_teacher(p, log_t)
    assert kl_to_teacher(walker, log_t) - best <= 0.01 * (start - best)


def test_an_accelerator_stops_when_all_rows_have_converged(monkeypatch):
    """The code for accelerators, run here: to the bit what all steps give, rows at either end and of NaN among them."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(2, 12, 50, generator=generator, dtype=torch.float64)
    log_p, log_t = logits.log_softmax(-1)
    log_t[1] = log_p[1]
    log_p[2] = torch.nan
    radius = torch.full((12,), 0.05, dtype=torch.float64)
    radius[3] = 0
    monkeypatch.setattr(devices, "HOST_DEVICES", set())
    moments, calls = solving.BridgeProblem.moments, []
    monkeypatch.setattr(solving.BridgeProblem, "moments", lambda own, beta: calls.append(0) or moments(own, beta))
    found = solve_bridge(log_p, log_t, radius)
    steps = len(calls)
    monkeypatch.setattr(solving, "LOOK_EVERY", 100)
    every = solve_bridge(log_p, log_t, radius)
    assert steps in (4, 8)
    assert len(calls) - steps == solving.DEVICE_STEPS
    for name in ("beta", "kl", "tv", "log_partition"):
        assert torch.allclose(getattr(found, name), getattr(every, name), atol=0, rtol=0, equal_nan=True), name


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize("more", [0.0, 1e-5, 3e-5, 1e-4])
def test_a_radius_that_just_holds_the_teacher_gives_nearly_the_teacher(host, more, monkeypatch):
    """Single precision leaves rows to the solver whose KL at the teacher is within rounding of the radius."""
    log_p, log_t = (law.float() for law in random_pair(50, 200, seed=7, dtype=torch.float64))
    log_p, log_t = normalized_log_probs(log_p), normalized_log_probs(log_t)
    radius = kl_divergence(log_t.double(), log_p.double()) * (1 + more)
    if not host:
        monkeypatch.setattr(devices, "HOST_DEVICES", set())
    assert float(solve_bridge(log_p, log_t, radius).beta.min()) > 0.999
