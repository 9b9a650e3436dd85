"""The bridge over a hundred thousand hostile rows, each measured from its result alone (see ``bridge_rows``)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from saki.functional import kl_divergence, solve_bridge, solve_bridge_bisection
from tests.functional.bridge_rows import (
    KINDS,
    MARGIN,
    ROUNDING,
    ROWS,
    SHORTFALL,
    TABLE,
    accurate_kl,
    make_rows,
    measure,
    measure_single,
)

SMALL = [vocab for vocab in ROWS if vocab <= 4096]


def assert_sound(m, where):
    """No row breaks a promise. Every allowance is one of float64 rounding and stands here."""
    assert m.excess <= 0, where  # inner rows: KL <= radius, without any allowance
    assert m.excess_teacher <= ROUNDING, where  # beta = 1 was selected by a KL(T||p) that rounds
    assert m.shortfall <= SHORTFALL, where
    assert m.shortfall <= 1.1 * MARGIN, where  # what the solver in fact reaches
    assert m.normalisation <= 1e-12, where
    assert m.pinsker <= 1 + 1e-9, where
    assert m.kl_error <= 1e-6, where
    assert m.tv_error <= 1e-12, where
    assert m.end_points <= 0, where  # by selection: not one bit off
    assert m.restricted_end_points <= 1e-12, where
    assert m.wrong_end == 0, where


def test_the_table_is_what_it_says():
    assert sum(rows for _, _, rows in TABLE) >= 100_000
    assert set(ROWS) == {2, 3, 7, 36, 257, 4096, 32_000, 151_936}
    assert len(TABLE) == len(ROWS) * len(KINDS)
    assert min(rows for _, _, rows in TABLE) >= 8  # each radius at least once


@pytest.mark.slow
@pytest.mark.parametrize("vocab", ROWS)
def test_every_row(vocab):
    for cell in TABLE:
        if cell[0] == vocab:
            row = make_rows(*cell)
            assert_sound(measure(*row, solve_bridge(*row)), cell)


@pytest.mark.parametrize("vocab", SMALL)
def test_a_sample_of_the_rows(vocab):
    for kind in KINDS:
        row = make_rows(vocab, kind, 40 if vocab < 4096 else 8)
        assert_sound(measure(*row, solve_bridge(*row)), (vocab, kind))


@pytest.mark.parametrize("vocab", [3, 36])
def test_all_ends_are_met(vocab):
    """The sample holds rows of each sort, so that none of the checks is empty."""
    counts = torch.zeros(3)
    for kind in KINDS:
        row = make_rows(vocab, kind, 40)
        counts += torch.tensor(measure(*row, solve_bridge(*row)).counts)
    assert bool((counts > 100).all())


def test_near_one_hot_rows_at_the_smallest_radius():
    """32,000 ids: sum p is off by 1e-13, which is 1e-5 of this radius."""
    log_p, log_t, radius = make_rows(32_000, "near-one-hot", 24)
    radius = torch.full_like(radius, 1e-8)
    m = measure(log_p, log_t, radius, solve_bridge(log_p, log_t, radius))
    assert float((log_p.exp().sum(dim=1) - 1).abs().max()) > 1e-14
    assert m.counts[1] > 10
    assert_sound(m, "near-one-hot")


@pytest.mark.parametrize("vocab", [2, 7, 257])
def test_newton_agrees_with_bisection(vocab):
    """45 waves leave nothing but the Newton solver's margin; the paper's 16 waves end below, by up to 2^-16 in beta."""
    for kind in KINDS:
        log_p, log_t, radius = make_rows(vocab, kind, 64)
        newton = solve_bridge(log_p, log_t, radius)
        fine = solve_bridge_bisection(log_p, log_t, radius, num_waves=45)
        paper = solve_bridge_bisection(log_p, log_t, radius)
        for waves, bridge in ((45, fine), (16, paper)):
            m = measure(log_p, log_t, radius, bridge)
            assert max(m.excess, 0.0) <= 1e-6, (kind, waves)  # it aims at the radius itself, and KL rounds
            assert m.end_points <= 0, (kind, waves)
            assert bool((newton.beta - bridge.beta <= 2.0**-waves).all()), (kind, waves)
        inner = (newton.beta > 0) & (newton.beta < 1) & (fine.beta > 0)
        assert bool((fine.kl - newton.kl <= 1.1 * MARGIN * radius)[inner].all()), kind
        assert bool((newton.kl - fine.kl <= 1e-6 * radius)[inner].all()), kind
        assert torch.equal(newton.beta == 1, fine.beta == 1), kind


def test_the_accurate_kl_is_kl():
    """Against the plain sum where that is accurate, and against its second-order value where it is not."""
    log_p, log_t, _ = make_rows(36, "smooth", 40)
    assert torch.allclose(accurate_kl(log_p, log_t - log_p), kl_divergence(log_t, log_p), rtol=1e-12)
    # p = (1/2, 1/2), q = ((1 + e)/2, (1 - e)/2): KL = e^2/2 + e^4/12 + ..., below 1e-16 for this e.
    e = 1e-8
    log_half = torch.full((1, 2), math.log(0.5), dtype=torch.float64)
    u = torch.tensor([[math.log1p(e), math.log1p(-e)]], dtype=torch.float64)
    assert float(accurate_kl(log_half, u)) == pytest.approx(e**2 / 2, rel=1e-12)
    # q = 0 at half of the mass: KL = log 2.
    u = torch.tensor([[math.log(2), -math.inf]], dtype=torch.float64)
    assert float(accurate_kl(log_half, u)) == pytest.approx(math.log(2), rel=1e-14)


def spoilt(bridge, how):
    """A result that a faulty solver could have given."""
    if how == "beta too large":
        return replace(bridge, beta=torch.where(bridge.beta < 1, bridge.beta * (1 + 1e-5), bridge.beta))
    if how == "beta too small":
        return replace(bridge, beta=bridge.beta * (1 - 1e-3))
    if how == "not normalised":
        return replace(bridge, log_partition=bridge.log_partition + 1e-9)
    if how == "teacher end point missed":
        return replace(bridge, beta=bridge.beta.clamp(max=1 - 1e-9))
    if how == "student end point missed":
        return replace(bridge, beta=bridge.beta.clamp(min=1e-9))
    return replace(bridge, beta=torch.zeros_like(bridge.beta), log_partition=0 * bridge.beta)  # gives up


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("beta too large", "smooth"),
        ("beta too small", "smooth"),
        ("not normalised", "smooth"),
        ("teacher end point missed", "p = T up to rounding"),
        ("student end point missed", "T with zeros"),
        ("gives up", "masses that underflow"),
    ],
)
def test_faulty_solvers_are_caught(how, kind):
    log_p, log_t, radius = make_rows(7, kind, 40)
    good = solve_bridge(log_p, log_t, radius)
    assert_sound(measure(log_p, log_t, radius, good), kind)
    with pytest.raises(AssertionError):
        assert_sound(measure(log_p, log_t, radius, spoilt(good, how)), kind)


def assert_sound_single(m, where):
    """The promises in float32 (SPEC 2: KL never above, at most 2e-4 below), measured in float64."""
    assert m.excess <= 0, where
    assert m.excess_teacher <= 0, where
    assert m.shortfall <= SHORTFALL, where
    # log q is a sum of three float32 terms; where q has mass they reach some 20 nats: 3 * 20 * 2**-24 = 3.6e-6.
    assert m.normalisation <= 4e-6, where
    assert m.pinsker <= 1 + 1e-6, where
    assert m.tv_error <= 2e-6, where
    assert m.kl_error <= 1e-2, where  # of the reported KL; below 1e-5 from a radius of 0.02 on


@pytest.mark.parametrize("vocab", SMALL)
def test_a_sample_of_the_rows_in_float32(vocab):
    for kind in KINDS:
        row = make_rows(vocab, kind, 40 if vocab < 4096 else 8)
        assert_sound_single(measure_single(*row), (vocab, kind))


@pytest.mark.slow
@pytest.mark.parametrize("vocab", ROWS)
def test_every_row_in_float32(vocab):
    for cell in TABLE:
        if cell[0] == vocab:
            assert_sound_single(measure_single(*make_rows(*cell)), cell)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own, at its import
@pytest.mark.timeout(600)
def test_compiled_passes_keep_the_promises():
    for vocab in (36, 4096):
        for kind in ("smooth", "sharp", "both with zeros", "near-one-hot"):
            assert_sound_single(measure_single(*make_rows(vocab, kind, 40), compiled=True), (vocab, kind))


def test_single_and_double_precision_agree():
    log_p, log_t, _ = make_rows(257, "smooth", 40)
    log_p, log_t = log_p.float(), log_t.float()
    single, double = solve_bridge(log_p, log_t, 0.02), solve_bridge(log_p.double(), log_t.double(), 0.02)
    assert torch.allclose(single.beta, double.beta, rtol=1e-4)
    assert torch.allclose(single.tv, double.tv, rtol=1e-4)


def test_a_rows_result_does_not_depend_on_its_neighbours():
    """A row with zeros beside a tame one sends the group through both precisions."""
    log_p, log_t, _ = make_rows(36, "smooth", 8)
    log_p, log_t = log_p.float(), log_t.float()
    alone = solve_bridge(log_p[:1], log_t[:1], 0.02)
    log_t[3, 5] = -math.inf
    mixed = solve_bridge(log_p, log_t, 0.02)
    assert torch.equal(mixed.beta[0], alone.beta[0])
    assert torch.equal(mixed.log_partition[0], alone.log_partition[0])
