"""What is said about a step's rollout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from saki.training import SakiConfig, SakiTrainer, TrainingDivergedError
from tests.tiny import tiny_pair, tiny_rows, tiny_tokenizer


@pytest.fixture
def run(tmp_path):
    student, teacher = tiny_pair()
    config = SakiConfig(
        output_dir=str(tmp_path), max_steps=1, prompts_per_step=2, num_generations=2, per_device_train_batch_size=4,
        max_completion_length=2, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    return SakiTrainer(student, teacher, config, tiny_rows(4), processing_class=tiny_tokenizer())


def roll_out(run, change=lambda batch: batch):
    generate = run.engine.generate
    run.engine.generate = lambda *args: change(generate(*args))
    run._sync_engine()
    items = [{"prompt": prompt, "sample": sample} for prompt in (0, 1) for sample in (0, 1)]
    return run.rollouts.roll_out(items, 1)


def test_many_truncated_completions_are_warned_of(run, caplog):
    batch = roll_out(run)
    assert batch.finish_reasons.count("length") > 2
    (warning,) = [record.message for record in caplog.records if "max_completion_length" in record.message]
    assert "of the completions of step 1 reached max_completion_length = 2; raise it" in warning


def test_few_truncated_completions_are_not(run, caplog):
    roll_out(run, lambda batch: replace(batch, finish_reasons=("length", "length", "stop", "stop")))
    assert not [record for record in caplog.records if "max_completion_length" in record.message]


def test_a_row_that_ended_in_nan_is_named(run, caplog):
    roll_out(run, lambda batch: replace(batch, finish_reasons=("stop", "nan", "stop", "stop")))
    (warning,) = [record.message for record in caplog.records if "NaN" in record.message]
    assert warning.startswith("step 1: prompt 0, sample 1 (")


def test_a_teacher_score_that_is_nan_stops_the_run_and_is_named(run):
    def spoil(batch):
        scores = batch.teacher_logprobs.clone()
        scores[2, 0] = torch.nan
        return replace(batch, teacher_logprobs=scores)

    with pytest.raises(TrainingDivergedError, match=r"the teacher's score of prompt 1, sample 0 .* is NaN at step 1"):
        roll_out(run, spoil)
