"""Statistics of the probe: the bootstrap against direct computations, quartiles, prompt-equal means, and the tables."""

from __future__ import annotations

import csv
import dataclasses
import itertools

import numpy as np
import pytest
import torch

from saki.analysis.probe_comparison import (
    CONTRAST,
    QUARTILES,
    bootstrap_means,
    compare_probe,
    position_groups,
    prompt_means,
    resample_counts,
)
from saki.analysis.probe_tables import probe_tables, write_comparison
from saki.probe import MEASURES, Measurement, Measures, Positions, Probe, TeacherLaws

NUM = 32
PROMPTS = np.repeat([4, 2, 9, 7, 5], [3, 9, 1, 11, 8])
"""Prompts of unequal size: averages over positions and over prompts differ."""


def probe_of(rng):
    """Positions with made-up conflict; what a comparison does not look at is left empty."""
    ids = torch.zeros(NUM, dtype=torch.long)
    positions = Positions(ids, ids, torch.tensor(PROMPTS), ids, ids, torch.arange(NUM) % 2 == 0, ids, ids, ids.double())
    initial = Measures(**{name: torch.tensor(rng.uniform(0, 3, NUM)) for name in MEASURES})
    return Probe((), positions, TeacherLaws(ids[:, None], ids[:, None], True), initial, 4, 36, "", {}, "digest")


def measurement(rng, step=50, label="trb", probe="digest", top_k=4):
    return Measurement(
        Measures(**{name: torch.tensor(rng.uniform(0, 1, NUM)) for name in MEASURES}), probe, label, step, top_k, ""
    )


def direct_mean(values, chosen, mask):
    """Mean over drawn prompts of the mean over a prompt's positions, by loops; prompts without a position are out."""
    means = []
    for prompt in chosen:
        inside = [value for value, of, counts in zip(values, PROMPTS, mask, strict=True) if of == prompt and counts]
        if inside:
            means.append(sum(inside) / len(inside))
    return sum(means) / len(means) if means else float("nan")


def test_every_resample_is_the_mean_over_the_drawn_prompts():
    rng = np.random.default_rng(0)
    values, mask = rng.normal(size=NUM), np.arange(NUM) % 3 > 0
    names = np.unique(PROMPTS)
    counts = resample_counts(len(names), 2500, seed=3)
    assert np.array_equal(counts.sum(axis=1), np.full(2500, len(names)))
    assert not np.array_equal(counts, resample_counts(len(names), 2500, seed=4))
    means = prompt_means(values, PROMPTS, mask)
    direct = [direct_mean(values, np.repeat(names, drawn), mask) for drawn in counts]
    np.testing.assert_allclose(bootstrap_means(means[:, None], counts)[:, 0], direct, rtol=0, atol=1e-12)


def test_interval_is_that_of_all_possible_resamples():
    """Of 5 prompts 5^5 = 3125 ordered draws are possible: their quantiles are what resampling estimates.

    The share of 10,000 draws below a quantile of 2.5% has SD 0.156%: the estimate lies between the 1.7% and the 3.3%
    quantile of the law of all draws (5 SD) but for odds of 1e-6; ties in the law only widen that range.
    """
    rng = np.random.default_rng(1)
    probe, pair = probe_of(rng), (measurement(rng, label="saki"), measurement(rng))
    comparison = compare_probe(probe, [pair[0]], [pair[1]], ("saki", "trb"))
    groups = position_groups(probe.initial.kl_teacher_student.numpy(), probe.positions.correction_mask.numpy())
    names = np.unique(PROMPTS)
    for metric, group in (("c1", "all"), ("kl_teacher_student", "corrections"), ("entropy", "Q3")):
        difference = getattr(pair[0].measures, metric).numpy() - getattr(pair[1].measures, metric).numpy()
        draws = [direct_mean(difference, d, groups[group]) for d in itertools.product(names, repeat=len(names))]
        effect = comparison.effect(50, metric, group)
        assert effect.value == pytest.approx(direct_mean(difference, names, groups[group]), abs=1e-12)
        for end, low, high in ((effect.low, 0.017, 0.033), (effect.high, 0.967, 0.983)):
            assert np.nanquantile(draws, low) - 1e-12 <= end <= np.nanquantile(draws, high) + 1e-12


def test_the_contrast_is_drawn_with_both_quartiles_at_once():
    rng = np.random.default_rng(2)
    probe, pair = probe_of(rng), (measurement(rng), measurement(rng))
    comparison = compare_probe(probe, [pair[0]], [pair[1]], ("a", "b"), num_resamples=400, seed=5)
    groups = position_groups(probe.initial.kl_teacher_student.numpy(), probe.positions.correction_mask.numpy())
    names = np.unique(PROMPTS)
    rest = [each.measures.c_top.numpy() - each.measures.c1.numpy() for each in pair]
    difference = rest[0] - rest[1]
    draws = []
    for counts in resample_counts(len(names), 400, 5):
        chosen = np.repeat(names, counts)
        draws.append(direct_mean(difference, chosen, groups["Q4"]) - direct_mean(difference, chosen, groups["Q1"]))
    effect = comparison.effect(50, "c_rest", CONTRAST)
    q1, q4 = (comparison.effect(50, "c_rest", group) for group in ("Q1", "Q4"))
    assert effect.value == pytest.approx(q4.value - q1.value, abs=1e-12)
    assert [effect.low, effect.high] == pytest.approx(list(np.nanquantile(draws, [0.025, 0.975])), abs=1e-12)
    assert effect.high - effect.low != pytest.approx((q4.high - q4.low) + (q1.high - q1.low), rel=0.01)


@pytest.mark.parametrize("num", [2048, 128, 30])
def test_quartiles_are_of_equal_size_and_rise(num):
    rng = np.random.default_rng(3)
    conflict = rng.integers(0, num // 3, num) / 10  # with ties
    groups = position_groups(conflict, np.arange(num) % 2 == 0)
    masks = np.stack([groups[name] for name in QUARTILES])
    assert np.array_equal(masks.sum(axis=0), np.ones(num))
    sizes = masks.sum(axis=1)
    assert set(sizes) == {num // 4} if num % 4 == 0 else sizes.max() - sizes.min() == 1
    for lower, upper in itertools.pairwise(masks):
        assert conflict[lower].max() <= conflict[upper].min()


def test_prompts_weigh_the_same():
    values = np.zeros(NUM)
    values[PROMPTS == 9] = 1.0  # one position of 32, one prompt of 5
    means = prompt_means(values, PROMPTS, np.ones(NUM, dtype=bool))
    assert np.nanmean(means) == pytest.approx(1 / 5)
    assert np.isnan(prompt_means(values, PROMPTS, PROMPTS != 9)).sum() == 1


def test_seeds_are_paired_in_order_and_averaged():
    rng = np.random.default_rng(4)
    probe = probe_of(rng)
    ours, theirs = [measurement(rng) for _ in range(3)], [measurement(rng) for _ in range(3)]
    effect = compare_probe(probe, ours, theirs, ("a", "b"), 100).effect(50, "c1")
    singles = [
        compare_probe(probe, [a], [b], ("a", "b"), 100).effect(50, "c1").value
        for a, b in zip(ours, theirs, strict=True)
    ]
    assert effect.value == pytest.approx(np.mean(singles))
    assert effect.seed_sd == pytest.approx(np.std(singles, ddof=1))
    assert (effect.num_seeds, effect.num_prompts, effect.num_positions) == (3, 5, NUM)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([{"probe": "other"}], [{}], "is of another probe (other, this one is digest)"),
        ([{"step": None}], [{}], "has no step; measure it again with --steps"),
        ([{"top_k": 5}], [{}], "measurements have top sets of [4, 5] tokens"),
        ([{"step": 10}], [{}], "no step is common: a has [10], b has [50]"),
        ([{}, {}], [{}], "step 50 has 2 measurements of a and 1 of b"),
    ],
)
def test_what_cannot_be_compared(ours, theirs, message):
    rng = np.random.default_rng(5)
    sides = [[measurement(rng, **changes) for changes in side] for side in (ours, theirs)]
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the sentence is looked at)
        compare_probe(probe_of(rng), *sides, ("a", "b"), 100)
    assert message in str(error.value)


def test_tables(tmp_path):
    rng = np.random.default_rng(6)
    sides = [[measurement(rng, step) for step in (0, 50, 200)] for _ in range(2)]
    comparison = compare_probe(probe_of(rng), *sides, ("saki", "trb"), 200)
    table7, quartiles = probe_tables(comparison)
    assert "SAKI - TRB" in table7.caption
    assert table7.header == ("Step", "C1 (pp)", "C4 (pp)", "KL(T||S)", "H(S)", "seeds")
    assert [row[0].text for row in table7.rows] == ["0", "50", "200"]
    effect = comparison.effect(50, "c1")
    assert table7.rows[1][1].text == f"{100 * effect.value:+.2f} [{100 * effect.low:+.2f}, {100 * effect.high:+.2f}]"
    effect = comparison.effect(200, "kl_teacher_student")
    assert table7.rows[2][3].text.startswith(f"{effect.value:+.3f} [")
    assert len(quartiles.rows) == 9
    widths = {line.replace("\\|", "").count("|") for line in table7.markdown().splitlines() if line.startswith("|")}
    assert widths == {7}
    write_comparison(tmp_path, comparison)
    for name in ("table7_probe", "figure2_quartiles"):
        assert {path.suffix for path in tmp_path.glob(f"{name}.*")} == {".md", ".tex", ".csv"}
    assert "KL(T\\textbar{}\\textbar{}S)" in (tmp_path / "table7_probe.tex").read_text()
    rows = list(csv.DictReader((tmp_path / "effects.csv").read_text().splitlines()))
    assert len(rows) == len(comparison.effects) == 3 * 6 * 8
    assert float(rows[0]["value"]) == comparison.effects[0].value
    assert set(rows[0]) == {each.name for each in dataclasses.fields(effect)}
