"""Two ranks against one: the same gradient, the same tokens, the same figures."""

from __future__ import annotations

import math

import pytest
import torch

from saki.training.sampler import CompletionDataset, StepSampler
from saki.training.step_clock import PARTS
from tests.training.launching import run_ranks
from tests.training.rank_jobs import (
    MICRO,
    PROMPTS,
    SAMPLES,
    RecordedEngine,
    evaluation,
    first_step,
    lab_trainer,
    logged,
    of_the_step,
    resume,
    rollouts_of,
    weights,
)

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
    return run_ranks(2, "single_steps", folder, recorded[0] / "rollouts", of_rank(1))


def test_ranks_share_the_gradient_and_the_figures_of_one(two_ranks, recorded):
    """DDP on recorded rollouts, in float64: 1e-10 of each gradient's size."""
    _, alone = recorded
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


@pytest.mark.parametrize(
    ("method", "branch"), [("entropy_aware", "reverse_and_forward_kl"), ("opsa", "low_probability")]
)
def test_a_quantile_is_that_of_the_whole_step(two_ranks, recorded, tmp_path, method, branch):
    """Tokens are split at a quantile of the teacher's entropies, or of the student's log-probs, wherever these lie."""
    alone = of_the_step(tmp_path, recorded[0] / "rollouts", method)
    for rank in two_ranks:
        share = rank[method]["log"][f"loss/{branch}_share"]
        assert 0.1 < share < 0.3
        assert share == pytest.approx(alone["log"][f"loss/{branch}_share"])
        assert_close(rank[method]["gradient"], alone["gradient"])


def test_an_evaluation_is_shared_and_its_figures_are_those_of_one(two_ranks, tmp_path):
    alone = evaluation(tmp_path)
    names = {"eval_loss", "eval/kl_to_teacher", "eval/mean_length", "eval/truncated_share", "eval/mean_at_1"}
    assert names <= alone.keys()
    for name in names:
        assert two_ranks[0]["evaluation"][name] == two_ranks[1]["evaluation"][name]
        assert math.isclose(two_ranks[0]["evaluation"][name], alone[name], rel_tol=1e-9), name


def test_all_ranks_end_by_the_failure_of_one(two_ranks):
    assert [rank["failure"] for rank in two_ranks] == [
        "PeerError: rank 1 failed: ValueError: this engine is broken",
        "ValueError: this engine is broken",
    ]


def test_the_parts_of_a_step_add_up(two_ranks, recorded):
    for log in (*(rank["real"]["log"] for rank in two_ranks), recorded[1]["log"]):
        parts = [log[f"time/{part}_s"] for part in (*PARTS, "rest")]
        assert all(part >= 0 for part in parts)
        assert math.isclose(sum(parts), log["time/step_s"], rel_tol=1e-9)
        assert log["time/rollout_s"] > 0
        assert log["time/update_s"] > 0
    assert two_ranks[0]["real"]["log"] == two_ranks[1]["real"]["log"]
    assert two_ranks[0]["real"]["log"]["time/wait_s"] > 0
    assert recorded[1]["log"]["time/wait_s"] == 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Twenty steps on one rank, with a checkpoint in the middle."""
    folder = tmp_path_factory.mktemp("alone")
    run = lab_trainer(folder, None, max_steps=20, save_strategy="steps", save_steps=10)
    run.train()
    return folder, weights(run), logged(folder)


@pytest.fixture(scope="module")
def long(tmp_path_factory, alone):
    folder = tmp_path_factory.mktemp("long")
    return folder, run_ranks(2, "long_runs", folder, alone[0], seconds=600)


@pytest.mark.slow
def test_twenty_steps_stay_within_rounding(long, alone):
    """DDP and FSDP2 on the same recorded rollouts: 1e-9 of each weight's size after twenty steps of AdamW at 1e-3."""
    for rank in long[1]:
        assert_close(rank["ddp"], alone[1], 1e-9)
        assert_close(rank["fsdp"], alone[1], 1e-9)


@pytest.mark.slow
def test_a_sharded_model_has_the_gradient_of_one_rank(long, recorded):
    """FSDP2 by accelerate's own grouping of modules; the head's logits come in chunks."""
    for rank in long[1]:
        assert all(rank["fsdp_sharded"])
        assert_close(rank["fsdp_gradient"], recorded[1]["gradient"])
        assert all(rank["fsdp_recomputed"]["sharded"])
        assert_close(rank["fsdp_recomputed"]["gradient"], recorded[1]["gradient"])


@pytest.mark.slow
def test_a_sharded_run_is_saved_and_goes_on(long):
    for rank in long[1]:
        assert rank["saved"].keys() == rank["fsdp"].keys()
        for name, tensor in rank["fsdp"].items():
            assert torch.equal(rank["saved"][name], tensor), name
        assert_close(rank["fsdp_resumed"], rank["fsdp"], 1e-12)


@pytest.mark.slow
def test_checkpoints_of_the_other_kind_are_refused(long):
    for rank in long[1]:
        to_sharded, to_whole = rank["refusals"]
        assert "checkpoint-10 was written without FSDP, and this run shards by FSDP2; " in to_sharded
        assert "checkpoint-10 was written with FSDP, and this run has no FSDP; " in to_whole


@pytest.mark.slow
def test_two_ranks_go_on_from_one(long, alone):
    """Real engines: the data's order, the rollouts and the optimizer's state are those of the run of one rank."""
    folder, _, log = alone
    for rank in long[1]:
        rollouts, lines = rank["resumed"]
        for step, found in zip((11, 12), rollouts, strict=True):
            expected = rollouts_of(folder, step)
            assert found.keys() == expected.keys()
            assert all(found[key]["ids"] == expected[key]["ids"] for key in expected)
        for found, expected in zip(lines, log[10:12], strict=True):
            assert_equal_figures(found, expected)


@pytest.mark.slow
def test_one_rank_goes_on_from_two(long, alone, tmp_path):
    folder, ranks = long
    run = resume(tmp_path / "one", folder / "ddp", 10, RecordedEngine(alone[0] / "rollouts"), max_steps=20)
    assert_close(weights(run), ranks[0]["ddp"], 1e-9)
    names = sorted(path.name for path in (tmp_path / "one" / "rollouts").iterdir())
    assert names == [
        *(f"step-{step:06d}-rank{rank}.parquet" for step in range(1, 11) for rank in (0, 1)),
        *(f"step-{step:06d}.parquet" for step in range(11, 21)),
    ]


@pytest.mark.slow
def test_a_sharded_run_feeds_engine_probe_and_evaluation(long):
    """No rank waits for one that measures alone, and the engine holds the gathered weights to the bit."""
    for rank in long[1]:
        assert rank["probe"]["engine"] == rank["probe"]["trainer"]
        assert rank["probe"]["probe"] == [f"step-{step:06d}.parquet" for step in range(3)]
        steps = [line["step"] for line in rank["probe"]["log"] if "eval_loss" in line]
        assert steps == [1, 2]
    assert long[1][0]["probe"]["engine"] == long[1][1]["probe"]["engine"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "adapter"])
def test_weights_stream_out_of_shards_one_at_a_time(long, kind):
    for rank in long[1]:
        found = rank["streamed"][kind]
        assert found["names"]
        assert found["equal"]
        assert found["gathered"] >= found["sharded"] - 2 > 10  # tied embeddings come once
        # A merged weight is made of three: the base's and the adapter's two factors.
        assert found["most"] == (1 if kind == "plain" else 3)
