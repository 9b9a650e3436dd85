"""Mean@k and Pass@k against counting, intervals against a bootstrap written out in loops."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saki.evaluation.metrics import (
    EvaluationResult,
    SetResult,
    bootstrap_interval,
    macro_average,
    mean_at_k,
    pass_at_k,
)


def make_set(name: str, correct: np.ndarray, k: int | None = None) -> SetResult:
    return SetResult.from_correct(name, correct, k=k, truncated=0.25, timeouts=1, num_tokens=100)


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 6))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(rows, k):
    counted = [np.mean([any(subset) for subset in itertools.combinations(row, k)]) for row in rows]
    np.testing.assert_allclose(pass_at_k(np.array(rows), k), counted, atol=1e-12)


def test_pass_at_one_is_mean_and_pass_at_all_is_any():
    correct = np.random.default_rng(0).random((50, 8)) < 0.3
    np.testing.assert_allclose(pass_at_k(correct, 1), mean_at_k(correct), atol=1e-15)
    np.testing.assert_array_equal(pass_at_k(correct), correct.any(axis=1))


def test_pass_at_k_stays_exact_for_many_samples():
    correct = np.zeros((1, 2000), dtype=bool)
    correct[0, 0] = True
    assert pass_at_k(correct, 1000)[0] == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("correct", "message"),
    [
        (np.array([True, False]), "boolean"),
        (np.array([[1, 0]]), "boolean"),
        (np.zeros((0, 8), dtype=bool), "at least one"),
    ],
)
def test_unusable_matrices_are_refused(correct, message):
    with pytest.raises(ValueError, match=message):
        mean_at_k(correct)


@pytest.mark.parametrize("k", [0, 9])
def test_k_beyond_the_samples_is_refused(k):
    with pytest.raises(ValueError, match=r"k must lie in \[1, 8\]"):
        pass_at_k(np.ones((2, 8), dtype=bool), k)


def test_interval_equals_a_direct_bootstrap_with_the_same_draws():
    values = np.random.default_rng(1).random(30)
    rng = np.random.default_rng(7)
    draws = rng.integers(0, 30, size=(200, 30), dtype=np.int32)
    means = [sum(values[i] for i in drawn) / 30 for drawn in draws]
    interval = bootstrap_interval(values, num_resamples=200, confidence=0.9, seed=7)
    assert interval.to_json() == pytest.approx(np.percentile(means, [5, 95]).tolist(), abs=1e-12)


def test_interval_agrees_with_the_normal_approximation_and_a_direct_bootstrap_of_other_draws():
    values = np.random.default_rng(2).random(400)
    interval = bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_interval_covers_the_mean_about_as_often_as_it_says():
    # 400 data sets: a binomial with rate 0.95 lies in [0.92, 0.98] up to odds of 1 in 100; seeds are fixed anyway.
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        interval = bootstrap_interval(rng.normal(size=60), num_resamples=400, seed=rng)
        hits += interval.low <= 0.0 <= interval.high
    assert 0.92 <= hits / 400 <= 0.98


def test_interval_is_by_problem_not_by_sample():
    # Every problem all right or all wrong: 8 samples carry no more than one.
    solved = np.arange(100) % 2 == 0
    eightfold = bootstrap_interval(mean_at_k(np.repeat(solved[:, None], 8, axis=1)))
    single = bootstrap_interval(mean_at_k(solved[:, None]))
    assert eightfold == single


def test_equal_values_give_an_interval_without_width():
    assert bootstrap_interval(np.ones(5)).to_json() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": []}, "non-empty"),
        ({"values": [0.5, np.nan]}, "finite"),
        ({"values": [0.5], "num_resamples": 0}, "num_resamples"),
        ({"values": [0.5], "confidence": 1.0}, "confidence"),
    ],
)
def test_unusable_arguments_of_the_bootstrap_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(**arguments)


def test_macro_average_weighs_sets_equally_and_resamples_within_them():
    rng = np.random.default_rng(4)
    small, large = rng.random(20), 1.0 + rng.random(500)
    estimate = macro_average([small, large], seed=5)
    assert estimate.value == pytest.approx((small.mean() + large.mean()) / 2)
    # Within sets the spread is that of the two means; pooling both sets would add the gap of 1 between them.
    half = 1.96 * np.sqrt(small.var() / 20 + large.var() / 500) / 2
    assert estimate.interval.high - estimate.interval.low == pytest.approx(2 * half, rel=0.1)
    direct_rng = np.random.default_rng(5)
    direct = [
        [values[direct_rng.integers(0, len(values), size=(2000, len(values)), dtype=np.int32)].mean(axis=1)]
        for values in (small, large)
    ]
    means = (direct[0][0] + direct[1][0]) / 2
    assert estimate.interval.to_json() == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=1e-12)


def test_macro_average_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one set"):
        macro_average([])


def test_result_has_the_documented_json():
    correct = np.random.default_rng(6).random((10, 8)) < 0.4
    result = EvaluationResult.from_sets([make_set("a", correct), make_set("b", ~correct)], seconds=4.0)
    written = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert set(written) == {"benchmarks", "average", "seconds", "tokens_per_s"}
    assert list(written["benchmarks"]) == ["a", "b"]
    entry = written["benchmarks"]["a"]
    assert entry["mean_at_k"] == pytest.approx(correct.mean())
    assert entry["pass_at_k"] == pytest.approx(correct.any(axis=1).mean())
    assert entry["ci95"]["mean_at_k"] == bootstrap_interval(correct.mean(axis=1)).to_json()
    assert entry["ci95"]["pass_at_k"] == bootstrap_interval(correct.any(axis=1)).to_json()
    assert {name: entry[name] for name in ("k", "num_problems", "num_samples", "truncated", "timeouts")} == {
        "k": 8,
        "num_problems": 10,
        "num_samples": 8,
        "truncated": 0.25,
        "timeouts": 1,
    }
    assert written["average"]["mean_at_k"] == pytest.approx(0.5)
    assert written["average"]["num_benchmarks"] == 2
    assert written["tokens_per_s"] == pytest.approx(50.0)


def test_time_that_is_not_known_is_none():
    result = EvaluationResult.from_sets([make_set("a", np.ones((2, 2), dtype=bool))])
    assert result.tokens_per_second is None
    assert result.to_json()["tokens_per_s"] is None


def test_sets_that_cannot_be_averaged_are_refused():
    correct = np.ones((2, 4), dtype=bool)
    with pytest.raises(ValueError, match="names must differ"):
        EvaluationResult.from_sets([make_set("a", correct), make_set("a", correct)])
    with pytest.raises(ValueError, match="one k"):
        EvaluationResult.from_sets([make_set("a", correct), make_set("b", correct, k=2)])
