"""Bands over seeds: means and t intervals as scipy has them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from saki.analysis.seed_bands import seed_band


def rows_of(values, first=1):
    return [{"step": first + n, "x": value} for n, value in enumerate(values)]


def test_a_band_is_the_mean_with_its_t_interval():
    runs = [rows_of([1.0, 2.0, 4.0]), rows_of([2.0, 5.0, 4.5]), rows_of([3.0, float("nan")])]
    band = seed_band(runs, "x")
    assert band.steps.tolist() == [1, 2, 3]
    assert band.counts.tolist() == [3, 2, 2]
    for place, values in enumerate([[1.0, 2.0, 3.0], [2.0, 5.0], [4.0, 4.5]]):
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert band.mean[place] == pytest.approx(np.mean(values))
        assert (band.low[place], band.high[place]) == (pytest.approx(low, rel=1e-6), pytest.approx(high, rel=1e-6))


def test_one_seed_has_no_interval_and_no_seed_no_band():
    band = seed_band([rows_of([1.0, 2.0])], "x")
    assert band.mean.tolist() == [1.0, 2.0]
    assert all(map(math.isnan, [*band.low, *band.high]))
    assert not seed_band([], "x").steps.size
    assert not seed_band([rows_of([1.0])], "y").steps.size


def test_each_seed_is_smoothed_by_itself_also_one_shorter_than_the_window():
    band = seed_band([rows_of([0.0, 3.0, 6.0]), rows_of([9.0])], "x", window=3)
    assert band.steps.tolist() == [1, 2, 3]
    assert band.mean.tolist() == [pytest.approx((1.5 + 9.0) / 2), 3.0, 4.5]
    assert not seed_band([rows_of([1.0])], "y", window=3).steps.size
