"""Maximal coupling: acceptance, residual, and the joint law of (z, y, C) against Eq. 38-51."""

import math

import pytest
import torch

from saki.functional import (
    RowKeys,
    Stream,
    accept_proposals,
    acceptance_probability,
    bridge_log_ratio,
    draw_proposals,
    draw_residual,
    keyed_uniforms,
    proposal_uniforms,
    residual_log_weights,
    screen_proposals,
    solve_bridge,
    total_variation,
)
from saki.functional.numerics import normalized_log_probs


def setup(radius=0.2):
    log_p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    log_t = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    bridge = solve_bridge(log_p, log_t, radius)
    return log_p, log_t, bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)


def test_acceptance_is_strict():
    uniforms = torch.tensor([2.0**-53, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert accept_proposals(torch.zeros(3).double(), uniforms).all()
    assert not accept_proposals(torch.full((3,), -torch.inf).double(), uniforms).any()
    half = torch.full((3,), math.log(0.5), dtype=torch.float64)
    assert accept_proposals(half, torch.tensor([0.4999, 0.5, 0.5001], dtype=torch.float64)).tolist() == [
        True,
        False,
        False,
    ]
    assert not accept_proposals(torch.full((3,), torch.nan).double(), uniforms).any()


def test_acceptance_probability():
    assert torch.allclose(
        acceptance_probability(torch.tensor([0.7, 0.0, -0.5, -torch.inf]).double()),
        torch.tensor([1.0, 1.0, math.exp(-0.5), 0.0]).double(),
    )


def test_residual_is_q_minus_p_on_the_positive_side():
    log_p, _, u = setup()
    gain = ((log_p + u).exp() - log_p.exp()).clamp(min=0)
    assert torch.allclose(residual_log_weights(log_p, u).exp(), gain, atol=1e-15)
    assert torch.isneginf(residual_log_weights(log_p, torch.zeros_like(u))).all()
    huge = residual_log_weights(torch.tensor([-800.0]).double(), torch.tensor([799.0]).double())
    assert float(huge) == pytest.approx(-1.0)


def test_screening_never_accepts_what_the_bridge_rejects():
    generator = torch.Generator().manual_seed(0)
    log_p = normalized_log_probs(torch.randn(4000, 6, generator=generator).double() * 3)
    log_t = normalized_log_probs(torch.randn(4000, 6, generator=generator).double() * 3)
    bridge = solve_bridge(log_p, log_t, 0.05)
    u = bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)
    uniforms = torch.rand(4000, 6, generator=generator, dtype=torch.float64)
    screened, accepted = screen_proposals(log_p, log_t, uniforms), accept_proposals(u, uniforms)
    assert not (screened & ~accepted).any()
    assert 0.2 < float(screened.double().mean()) < 1.0


def test_joint_law_of_proposal_token_and_correction():
    """Counts of (z, y, C) against min(p, q) on the diagonal and [p - q]+ [q - p]+ / TV off it.

    Chi-square at alpha = 1e-6 with fixed keys: a pass or a failure is the same at every run.
    """
    log_p, _, u = setup()
    p, q = log_p.exp(), (log_p + u).exp()
    num = 200_000
    keys = RowKeys(11, torch.arange(num), torch.zeros(num, dtype=torch.long))
    positions = torch.zeros(num, dtype=torch.long)
    z = draw_proposals(log_p.expand(num, -1), proposal_uniforms(keys, positions.unsqueeze(1), 4)[:, 0])
    accepted = accept_proposals(u[z], keyed_uniforms(keys, positions, Stream.ACCEPT).squeeze(-1))
    residual, has_weight = draw_residual(log_p.expand(num, -1), u.expand(num, -1), keys, positions)
    assert has_weight.all()
    y = torch.where(accepted, z, residual)
    counts = torch.bincount((z * 4 + y) * 2 + (~accepted), minlength=32).double()
    tv = float(total_variation(log_p, log_p + u))
    expected = torch.zeros(4, 4, 2, dtype=torch.float64)
    for a in range(4):
        expected[a, a, 0] = torch.minimum(p[a], q[a])
        for b in range(4):
            expected[a, b, 1] = (p[a] - q[a]).clamp(min=0) * (q[b] - p[b]).clamp(min=0) / tv
    expected = expected.flatten() * num
    assert float(counts[expected == 0].sum()) == 0
    used = expected > 0
    statistic = float(((counts - expected)[used] ** 2 / expected[used]).sum())
    degrees = int(used.sum()) - 1
    # Wilson-Hilferty quantile of chi-square at 1 - 1e-6 (z = 4.753).
    bound = degrees * (1 - 2 / (9 * degrees) + 4.753 * math.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < bound
