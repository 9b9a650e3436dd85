"""Training steps are timed by phase on forced lengths; without TRL one sentence says so."""

from __future__ import annotations

import json

import pytest

from saki.benchmarking import bench_train, train_table
from saki.benchmarking.steps import StepTimes, check_lengths
from saki.benchmarking.training import LOSSES, TrainWork, TrlMissingError, saki_steps, trl_steps

PHASES = {"generation", "scoring", "sync"}
LENGTH = 50
"""Long enough for an end token (one of 40 ids) to be sampled: it must not end a completion."""


@pytest.fixture
def work(pair):
    texts = tuple(" ".join(f"w{(i + j) % 30}" for j in range(4)) for i in range(6))
    return TrainWork(pair, texts, batch_size=2, length=LENGTH, steps=2)


@pytest.mark.parametrize("method", ["opd", "opd_full"])
def test_saki_steps_have_forced_lengths_and_phases(work, method, tmp_path, monkeypatch):
    seen, phases = [], []
    phase = StepTimes.phase
    monkeypatch.setattr(StepTimes, "phase", lambda times, name: phases.append(name) or phase(times, name))
    monkeypatch.setattr(
        "saki.benchmarking.steps.check_lengths", lambda who, lengths, length: seen.append((lengths, length))
    )
    times = saki_steps(work, method, tmp_path)
    assert seen == [([LENGTH, LENGTH], LENGTH)] * 3
    # The teacher's pass of a loss over the whole vocabulary is scoring, too.
    assert phases.count("scoring") == (3 if method == "opd_full" else 0)
    assert len(times.steps) == 3
    assert times.prompt_tokens == 6 * 4
    for step in times.steps:
        assert set(step) == PHASES | {"step"}
        assert all(step[phase] > 0 for phase in PHASES)
        assert sum(step[phase] for phase in PHASES) < step["step"]


def test_lengths_that_differ_are_refused():
    check_lengths("saki", [7, 7], 7)
    with pytest.raises(RuntimeError, match="TRL gave completions of 5 to 7 tokens, forced were 7"):
        check_lengths("TRL", [7, 5], 7)


def test_phases_belong_to_the_step_that_ends():
    times = StepTimes()
    times.begin()
    times.charge("generation", 2.0)
    times.charge("generation", 1.0)
    times.end_step()
    times.end_step()
    assert times.steps[0]["generation"] == 3.0
    assert "generation" not in times.steps[1]


def test_without_trl_one_sentence_says_so(work, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        TrlMissingError, match=r"needs TRL to compare with; install the extra with pip install saki\[bench"
    ):
        trl_steps(work, tmp_path)


def test_trl_goes_on_after_an_end_token(work, tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    turns, turn = [], trl.DistillationTrainer._generate_single_turn

    def spy(trainer, *args, **kwargs):
        assert trainer.model.generation_config.eos_token_id is None  # else an ended row would be filled with padding
        turns.append(turn(trainer, *args, **kwargs))
        return turns[-1]

    monkeypatch.setattr(trl.DistillationTrainer, "_generate_single_turn", spy)
    times = trl_steps(work, tmp_path)
    end = work.pair.tokenizer.eos_token_id
    assert any(end in ids[:-1] for completions in turns for ids in completions)
    assert {len(ids) for completions in turns for ids in completions} == {LENGTH}
    assert all(step["generation"] + step["scoring"] < step["step"] for step in times.steps)


def test_trl_does_the_same_work(pair):
    pytest.importorskip("trl")
    result = bench_train(pair, batch_size=2, prompt_length=4, length=LENGTH, repeats=2, steps=1)
    json.dumps(result)
    assert result["order"] == [["trl", "opd", "opd_full"], ["opd", "opd_full", "trl"]]
    for name, arm in result["arms"].items():
        assert arm["loss"] == LOSSES[name]
        assert arm["steps"] == 2
        assert arm["generation_s"] > 0
        assert arm["scoring_s"] > 0
        assert arm["update_s"] > 0
    assert result["arms"]["trl"]["ratio_to_trl"] == 1.0
    assert "loss" in train_table(result)
