"""Completions and histories of toy pairs come with their enumerated probabilities, whatever K, radius, stop and cap.

False-alarm rate of the quick cases together: 1e-4 (ALPHA, split evenly over the cases; the looks within a case share
its part, see ``law.sequential_chi_square``); the slow cases have 1e-4 of their own. Keys are fixed (``cases.SEED``),
so a pass is the same at every run.
"""

from __future__ import annotations

import pytest

from saki.rollout import ResidentEngine
from saki.types import Prompt, RolloutRequest
from tests.statistical.cases import QUICK, SLOW, Case, pair
from tests.statistical.law import sequential_chi_square

ALPHA = 1e-4


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_law(case):
    assert sum(case.expected().values()) == pytest.approx(1.0)
    rejected, size = case.reject(ALPHA / len(QUICK), num_looks=4)
    assert not rejected, f"the law was rejected at {size} samples"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["parity", "zeros", "far", "qwen3"])
def test_law_of_every_combination(name):
    for case in (case for case in SLOW if case.pair == name):
        rejected, size = case.reject(ALPHA / len(SLOW), num_looks=6)
        assert not rejected, f"{case}: the law was rejected at {size} samples"


def test_the_test_can_fail():
    """Samples at radius 0.1 are told from the law at 0.3: the test has power at the sizes it uses."""
    drawn, claimed = Case("parity", 3, 0.1), Case("parity", 3, 0.3)
    rejected, size = sequential_chi_square(drawn.drawer(), claimed.expected(), ALPHA / len(QUICK), num_looks=4)
    assert rejected
    assert size <= 4000


def test_correction_rate_is_the_mean_tv():
    """The number of corrections less the sum of TV is a martingale with variance sum TV (1 - TV); five sigma."""
    toy = pair("parity")
    engine = ResidentEngine(*toy.decoders(), [2], max_batch_rows=2000)
    request = RolloutRequest(seed=9, max_completion_length=4, trust_region_radius=0.1, num_generations=3000)
    batch = engine.generate([Prompt(4, toy.prompt)], request)
    tv = batch.tv[batch.response_mask]
    excess = float(batch.correction_mask.sum() - tv.sum())
    assert abs(excess) < 5 * float((tv * (1 - tv)).sum()) ** 0.5
    assert float(tv.max()) <= (0.1 / 2) ** 0.5
