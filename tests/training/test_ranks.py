"""Two ranks against one: the same gradient, the same tokens, the same figures."""

from __future__ import annotations

import math

import pytest
import torch

from saki.training.sampler import CompletionDataset, StepSampler
from tests.training.launching import run_ranks
from tests.training.rank_jobs import MICRO, PROMPTS, SAMPLES, RecordedEngine, first_step, rollouts_of

OF_THE_ENGINES = ("time/", "sync/", "rollout/waves", "rollout/teacher_q_forwards", "rollout/empty_residuals")
"""Figures that say how rollouts were made, which depends on how they are spread."""


def of_rank(rank, size=2):
    """(prompt key, sample) of the completions that a rank takes in the first step."""
    dataset = CompletionDataset(24, SAMPLES)
    items = [tuple(dataset[index].values()) for index in StepSampler(dataset, PROMPTS, 3)][: PROMPTS * SAMPLES]
    return frozenset(item for place, item in enumerate(items) if place // MICRO % size == rank)


def assert_close(found, expected, relative=1e-10):
    """Tensors by name, each within ``relative`` of the largest entry of the expected one."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= relative * float(value.abs().max()), name


def assert_equal_figures(found, expected, relative=1e-9):
    names = {name for name in expected if not name.startswith(OF_THE_ENGINES)}
    assert {name for name in found if not name.startswith(OF_THE_ENGINES)} == names
    assert {"loss", "grad_norm", "rollout/correction_rate", "rollout/max_length", "loss/teacher_mode_share"} <= names
    for name in names:
        # The library adds losses up in float32.
        within = 1e-6 if name == "loss" else relative
        assert math.isclose(found[name], expected[name], rel_tol=within, abs_tol=1e-12), name


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One step of the embedded pair on one rank, in float64."""
    folder = tmp_path_factory.mktemp("recorded")
    return folder, first_step(folder, None)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, recorded):
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(2, "gradients", folder, recorded[0] / "rollouts", of_rank(1))


def test_ranks_share_the_gradient_and_the_figures_of_one(two_ranks, recorded):
    """DDP on recorded rollouts, in float64: 1e-10 of each gradient's size."""
    folder, alone = recorded
    assert sum(rank["plain"]["tokens"] for rank in two_ranks) == alone["tokens"]
    for rank in two_ranks:
        assert 0 < rank["plain"]["tokens"] < alone["tokens"]
        assert_close(rank["plain"]["gradient"], alone["gradient"])
        assert_equal_figures(rank["plain"]["log"], alone["log"])


def test_a_rank_without_tokens_adds_nothing_and_does_not_hang(two_ranks, recorded, tmp_path):
    folder, _ = recorded
    alone = first_step(tmp_path, RecordedEngine(folder / "rollouts", of_rank(1)))
    assert [rank["silent"]["tokens"] for rank in two_ranks] == [alone["tokens"], 0]
    for rank in two_ranks:
        assert_close(rank["silent"]["gradient"], alone["gradient"])
        assert_equal_figures(rank["silent"]["log"], alone["log"])


def test_ranks_draw_the_tokens_of_one(two_ranks, recorded):
    """Real engines, each with its own part of the request: random numbers are keyed by what they are drawn for."""
    folder, alone = recorded
    expected, found = rollouts_of(folder), two_ranks[0]["rollouts"]
    assert found.keys() == expected.keys()
    for key, completion in expected.items():
        for name in ("ids", "proposals", "corrected", "reason"):
            assert found[key][name] == completion[name], (key, name)
        assert torch.allclose(found[key]["student_logprobs"], completion["student_logprobs"], rtol=0, atol=1e-10)
    for rank in two_ranks:
        assert_close(rank["real"]["gradient"], alone["gradient"])
        assert_equal_figures(rank["real"]["log"], alone["log"])
        assert rank["real"]["log"]["rollout/empty_residuals"] == alone["log"]["rollout/empty_residuals"]
