"""The plain bisection is a fair opponent: as exact as its 16 halvings allow."""

from __future__ import annotations

import json

import pytest
import torch

from saki.benchmarking import bench_bridge, bridge_table, full_tensor_bisection
from saki.benchmarking.bridge import bridge_rows
from saki.functional import solve_bridge

RADIUS = 0.02


@pytest.mark.parametrize("vocab", [7, 300, 5000])
def test_full_tensor_bisection_agrees_within_its_own_resolution(vocab):
    log_p, log_t = bridge_rows(24, vocab, 1, torch.device("cpu"))
    plain = full_tensor_bisection(log_p.double(), log_t.double(), RADIUS)
    exact = solve_bridge(log_p.double(), log_t.double(), RADIUS)
    gap = exact.beta - plain.beta
    assert bool((gap >= -1e-6).all())
    assert bool((gap <= 2.0**-16 + 2e-6).all())
    assert bool((plain.kl <= RADIUS).all())
    assert float((plain.tv - exact.tv).abs().max()) < 2.0**-16
    torch.testing.assert_close(plain.log_q.logsumexp(dim=-1), torch.zeros(24).double())
    single = full_tensor_bisection(log_p, log_t, RADIUS)
    assert float((single.beta - exact.beta).abs().max()) < 2.0**-16 + 1e-4


def test_full_tensor_bisection_selects_the_teacher_where_it_is_feasible():
    log_p, log_t = bridge_rows(3, 50, 2, torch.device("cpu"))
    log_t[1] = log_p[1]
    plain = full_tensor_bisection(log_p, log_t, RADIUS)
    assert float(plain.beta[1]) == 1.0
    assert float(plain.tv[1]) < 1e-6
    assert bool((plain.beta[[0, 2]] < 1).all())


def test_bench_reports_speed_and_exactness_by_vocabulary():
    result = bench_bridge([300, 1000], rows=(2, 4), repeats=2)
    json.dumps(result)
    assert set(result["vocab"]) == {"300", "1000"}
    for entry in result["vocab"].values():
        assert set(entry) >= {"speedup", "max_abs_dbeta", "max_kl_excess", "ms_per_row"}
        assert set(entry["solvers"]) == {"saki", "grouped_bisection", "full_tensor"}
        assert entry["max_kl_excess"] <= 0
        assert entry["max_abs_dbeta"] < 1e-3
        assert entry["speedups"]["full_tensor"] == 1.0
    assert "full_tensor" in bridge_table(result)
