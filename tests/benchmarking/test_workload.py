"""Workloads: lengths from their law, requests that divide into samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from saki.benchmarking import lognormal_lengths, make_pair


def test_lengths_follow_the_lognormal_law():
    lengths = np.array(lognormal_lengths(20_000, 10**9, seed=0))
    assert abs(np.median(lengths) / 64 - 1) < 0.03
    assert abs(np.log(lengths).std() / 0.8 - 1) < 0.03
    assert lengths.max() > 64 * math.exp(2 * 0.8)


def test_lengths_stay_under_the_cap_and_repeat():
    lengths = lognormal_lengths(500, 90, seed=1)
    assert max(lengths) == 90
    assert min(lengths) >= 1
    assert lengths == lognormal_lengths(500, 90, seed=1)
    assert lengths != lognormal_lengths(500, 90, seed=2)


def test_requests_divide_into_samples(workload):
    work = workload(lengths=(3, 4, 5, 6), samples=2)
    assert len(work.prompts) == 2
    assert work.forced == {(0, 0): 3, (0, 1): 4, (1, 0): 5, (1, 1): 6}
    assert work.row_prompts()[0] == work.row_prompts()[1] != work.row_prompts()[2]
    with pytest.raises(ValueError, match="requests must be a multiple of samples_per_prompt, got 3 and 2"):
        workload(lengths=(3, 4, 5), samples=2)


@pytest.mark.parametrize(
    ("preset", "folders", "message"),
    [
        ("small", {}, "preset must be one of tiny, folders, smollm2, qwen3-shapes"),
        ("smollm2", {}, "takes two folders"),
        ("smollm2", {"model": "a"}, "takes two folders"),
        ("tiny", {"model": "a", "teacher_model": "b"}, "takes no folders"),
    ],
)
def test_presets_refuse_what_does_not_fit(preset, folders, message):
    with pytest.raises(ValueError, match=message):
        make_pair(preset, **folders)


def test_tiny_pair_has_its_size_and_its_weights_each_time():
    pair = make_pair("tiny")
    student, again, teacher = pair.build("student"), pair.build("student"), pair.build("teacher")
    assert 1.2e6 < student.num_parameters() < 1.4e6
    assert 3.4e6 < teacher.num_parameters() < 3.8e6
    assert student.config.vocab_size == teacher.config.vocab_size == pair.vocab_size == 4096
    assert all(bool((a == b).all()) for a, b in zip(student.parameters(), again.parameters(), strict=True))
    assert pair.prompt_ids(2, 7, 0) == pair.prompt_ids(2, 7, 0)
    assert [len(ids) for ids in pair.prompt_ids(3, 7, 0)] == [7, 7, 7]
