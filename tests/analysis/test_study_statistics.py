"""Statistics of studies: coverage by simulation, quantiles against scipy, pairing, and the file of results."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from saki.analysis.study_results import Sample, SetScore, gather, read_results, write_results
from saki.analysis.study_statistics import paired, seeds_needed, share_spread, spread, t_quantile


def matrices(rng, seeds=8, problems=(40, 25), seed_sd=0.05, truth=(0.3, 0.6)):
    """Shares of right answers with noise between runs and between problems."""
    run = rng.normal(0, seed_sd, seeds)
    values = {}
    for index, (count, mean) in enumerate(zip(problems, truth, strict=True)):
        difficulty = rng.normal(0, 0.2, count)
        values[f"set{index}"] = mean + run[:, None] + difficulty + rng.normal(0, 0.1, (seeds, count))
    return values


def test_macro_average_weighs_sets_equally():
    rng = np.random.default_rng(0)
    values = matrices(rng)
    result = spread(values)
    assert result.value == pytest.approx((values["set0"].mean() + values["set1"].mean()) / 2)
    by_seed = (values["set0"].mean(axis=1) + values["set1"].mean(axis=1)) / 2
    assert result.seed_sd == pytest.approx(by_seed.std(ddof=1))
    assert result.num_seeds == 8
    assert result.low < result.value < result.high


@pytest.mark.parametrize("seeds", [2, 3, 4, 8])
@pytest.mark.parametrize("seed_sd", [0.0, 0.05])
def test_interval_covers_the_truth_over_runs_and_problems(seeds, seed_sd):
    """True mean 0.45 over runs and problems; of 400 studies 368 or more must cover it (odds of failure 0.5% at 95%)."""
    rng = np.random.default_rng(1)
    found = [spread(matrices(rng, seeds, seed_sd=seed_sd)) for _ in range(400)]
    assert sum(each.low <= 0.45 <= each.high for each in found) >= 368


def test_one_seed_says_nothing_of_run_to_run_noise():
    """Where that is large, the interval over problems alone misses often."""
    rng = np.random.default_rng(1)
    found = [spread(matrices(rng, 1, seed_sd=0.2)) for _ in range(60)]
    assert all(math.isnan(each.seed_sd) for each in found)
    assert sum(each.low <= 0.45 <= each.high for each in found) < 45


def test_variance_has_both_parts_and_noise_once():
    rng = np.random.default_rng(2)
    of_seeds, of_problems = rng.normal(0, 1, (12, 1)), rng.normal(0, 1, (1, 30))
    only_seeds = spread({"a": np.repeat(of_seeds, 30, axis=1)})
    only_problems = spread({"a": np.repeat(of_problems, 12, axis=0)})
    assert only_seeds.high - only_seeds.value == pytest.approx(
        stats.t.ppf(0.975, 11) * of_seeds.std(ddof=1) / math.sqrt(12), rel=1e-3
    )
    assert only_problems.seed_sd == pytest.approx(0.0, abs=1e-12)
    assert only_problems.high - only_problems.value == pytest.approx(
        1.96 * of_problems.std(ddof=1) / math.sqrt(30), rel=1e-3
    )
    both = spread({"a": of_seeds + of_problems})
    assert both.high - both.low == pytest.approx(
        math.hypot(only_seeds.high - only_seeds.low, only_problems.high - only_problems.low)
    )
    noise = spread(
        {"a": rng.normal(0, 1, (400, 400))}
    )  # 1.96 / 400, with the noise counted twice it were 1.41 times that
    assert noise.high - noise.value == pytest.approx(1.96 / 400, rel=0.2)


def test_shares_stay_shares():
    low, high = (np.full((2, 50), share) + np.array([[0.0], [0.02]]) for share in (0.0, 0.98))
    assert spread({"a": low}).low < 0.0 < share_spread({"a": low}).value
    assert share_spread({"a": low}).low == 0.0
    assert share_spread({"a": high}).high == 1.0


def sample(rng, seeds, shift=0.0):
    mean = {name: np.clip(value + shift, 0, 1) for name, value in matrices(rng, len(seeds)).items()}
    return Sample(tuple(seeds), mean, {name: (value > 0.4).astype(float) for name, value in mean.items()})


def test_pairing_takes_common_noise_away():
    rng = np.random.default_rng(3)
    base = sample(rng, range(6))
    better = Sample(base.seeds, {k: v + 0.02 for k, v in base.mean.items()}, base.passed)
    result = paired(better, base)
    assert result.spread.value == pytest.approx(0.02)
    assert result.seeds_low == pytest.approx(0.02) == pytest.approx(result.seeds_high)
    assert result.num_seeds_for_a_point == 2
    assert paired(better, base, "passed").spread.value == 0.0


def test_only_common_seeds_are_paired():
    rng = np.random.default_rng(4)
    a, b = sample(rng, [0, 1, 2, 3]), sample(rng, [2, 3, 9])
    result = paired(a, b)
    assert result.spread.num_seeds == 2
    rows = {name: a.mean[name][2:] - b.mean[name][:2] for name in a.mean}
    assert result.spread.value == pytest.approx(np.mean([value.mean() for value in rows.values()]))
    differences = np.mean([value.mean(axis=1) for value in rows.values()], axis=0)
    half = stats.t.ppf(0.975, 1) * differences.std(ddof=1) / math.sqrt(2)
    assert (result.seeds_low, result.seeds_high) == pytest.approx(
        (differences.mean() - half, differences.mean() + half)
    )
    assert paired(a, sample(rng, [7])) is None
    assert math.isnan(paired(a, sample(rng, [3])).seeds_low)


@pytest.mark.parametrize("probability", [0.9, 0.975, 0.995])
@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 15, 60])
def test_t_quantiles(probability, degrees):
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=0.02)
    if degrees != 3:
        assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=0.006)


@pytest.mark.parametrize("sd", [0.5, 1.1, 2.0])
def test_seeds_needed_gives_the_power(sd):
    """Against the power of the paired t test by the non-central t law."""

    def power(n):
        shift = math.sqrt(n) / sd
        critical = stats.t.ppf(0.975, n - 1)
        return stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift)

    needed = seeds_needed(sd, 1.0)
    assert power(needed) > 0.75
    assert needed == 2 or power(needed - 1) < 0.82


def score(label, seed, right, step=5, name="set0"):
    return SetScore("s", label, "opd", seed, step, name, 4, tuple(right), 0.0, 1.0, 2.0, "settings")


def test_results_come_back(tmp_path):
    scores = [score("opd", seed, [seed, 4, 0]) for seed in (0, 1)]
    assert scores[1].mean_at_k == pytest.approx(5 / 12)
    assert scores[0].pass_at_k == pytest.approx(1 / 3)
    write_results(tmp_path / "results.parquet", scores)
    assert read_results(tmp_path / "results.parquet") == scores
    with pytest.raises(ValueError, match="no results file"):
        read_results(tmp_path / "other.parquet")


def test_gathering_takes_the_last_step_and_whole_seeds():
    scores = [score("opd", 0, [1, 2], step=step, name=name) for step in (5, 10) for name in ("set0", "set1")]
    scores += [score("opd", 1, [4, 0], step=10, name="set0")]  # set1 is missing: the seed is left out
    scores += [score("trb", 0, [0, 0], step=10)]
    found = gather(scores, "s", "opd", None)
    assert found.seeds == (0,)
    assert found.mean["set0"].tolist() == [[0.25, 0.5]]
    assert found.passed["set1"].tolist() == [[1.0, 1.0]]
    assert gather(scores, "s", "opd", 5).seeds == (0,)
    assert gather(scores, "s", "saki", None) is None
