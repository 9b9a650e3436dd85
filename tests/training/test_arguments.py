"""What a trainer is given from Python: each mistake is one sentence, before anything is loaded or written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from saki.models import UnsupportedArchitectureError, tiny_qwen3
from saki.training import SakiConfig, SakiTrainer
from saki.training.arguments import check_device
from tests.tiny import VOCAB, tiny_pair, tiny_rows, tiny_tokenizer

EXACT = "exact mode samples and scores the full vocabulary at temperature 1"


def config(folder, **changes):
    values = {
        "output_dir": str(folder / "run"),
        "max_steps": 1,
        "prompts_per_step": 2,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_prompt_length": 16,
        "max_completion_length": 4,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return SakiConfig(**(values | changes))


def trainer(folder, settings=None, **changes):
    student, teacher = tiny_pair()
    values = {
        "model": student,
        "teacher_model": teacher,
        "args": config(folder, **(settings or {})),
        "train_dataset": tiny_rows(4),
        "processing_class": tiny_tokenizer(),
    }
    return SakiTrainer(**(values | changes))


def other_tokenizer():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["u"])
    return tokenizer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": {"output_dir": "x"}}, "args is a dict, expected a saki.training.SakiConfig"),
        ({"model": 3}, "model is a int, expected a causal language model, or a folder or hub name"),
        ({"teacher_model": None}, "teacher_model is a NoneType, expected a causal language model"),
        ({"processing_class": None}, "processing_class is needed when model is not a name"),
        ({"processing_class": "gpt2"}, "processing_class is a str, expected the student's tokenizer"),
        ({"engine": "vllm"}, "engine is a str, expected a saki.rollout.RolloutEngine"),
        ({"method": "saki"}, "method is a str, expected a saki.methods.Method"),
        (
            {"teacher_processing_class": other_tokenizer()},
            "tokenizers differ at 1 ids .first: 22: 'u' against no token",
        ),
        ({"model": "/no/such/folder"}, "there is no checkpoint folder '/no/such/folder'"),
        ({"train_dataset": None}, "expected a datasets.Dataset or a list of rows, got NoneType"),
        ({"train_dataset": []}, "the data set has no rows"),
        ({"train_dataset": tiny_rows(1)}, "a step needs 2 prompts, but only 1 are left after filtering"),
        ({"eval_dataset": [{"text": "a"}]}, "row 0 has no 'prompt' column, only"),
        ({"eval_dataset": {"test": tiny_rows(1)}}, r"expected one data set, got the splits \['test'\]"),
        ({"settings": {"max_completion_length": 5000}}, "the student takes [0-9]+ tokens in all; lower max_completion"),
        ({"settings": {"max_prompt_length": 1}, "train_dataset": [{"prompt": "a b"}]}, "no prompt is left of 1: 1 are"),
    ],
)
def test_mistakes_leave_nothing_behind(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, **changes)
    assert not (tmp_path / "run").exists()


def test_a_model_that_the_engine_refuses_is_named(tmp_path):
    student = tiny_qwen3(VOCAB, layers=1)
    student.config.model_type = "gpt_oss"
    student.config.eos_token_id = 1
    with pytest.raises(UnsupportedArchitectureError, match="model type 'gpt_oss' has attention sinks"):
        trainer(tmp_path, model=student)


@pytest.mark.parametrize("option", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample"])
def test_sampling_options_are_refused_with_the_reason(tmp_path, option):
    with pytest.raises(ValueError, match=f"{option} cannot be honoured: {EXACT}"):
        config(tmp_path, **{option: 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blok_size": 4}, "unknown key 'blok_size' in SakiConfig; did you mean 'block_size'"),
        ({"block_size": "8"}, "block_size must be a whole number, got '8' .str."),
        ({"block_size": 1.5}, "block_size must be a whole number, got 1.5 .float."),
        ({"block_size": True}, "block_size must be a whole number, got True .bool."),
        ({"prompts_per_step": None}, "prompts_per_step must be a whole number, got None"),
        ({"trust_region_radius": "0.02"}, "trust_region_radius must be a number, got '0.02'"),
        ({"trust_region_radius": float("nan")}, "trust_region_radius must be finite"),
        ({"method": None}, "a method is named by text, got None"),
        ({"max_steps": 0}, "max_steps must be at least 1, or -1"),
        ({"learning_rate": float("inf")}, "learning_rate must be finite"),
        ({"report_to": ["tensorbord"]}, "unknown key 'tensorbord' in report_to; did you mean 'tensorboard'"),
    ],
)
def test_settings_of_the_wrong_kind(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **changes)


def test_a_tracker_that_is_not_installed_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("saki.training.config.get_available_reporting_integrations", lambda: ["tensorboard"])
    with pytest.raises(ValueError, match="report_to names 'wandb', which is not installed; install it, or take one of"):
        config(tmp_path, report_to="wandb")


def test_widths_that_differ_in_padding_are_cut_and_logged_and_training_goes_on(tmp_path, caplog):
    caplog.set_level("INFO")
    run = trainer(tmp_path)
    notes = [record.message for record in caplog.records if "padding ids" in record.message]
    assert notes == [
        f"student: 2 padding ids of {VOCAB + 2} cut, {VOCAB} are real",
        f"teacher: 10 padding ids of {VOCAB + 10} cut, {VOCAB} are real",
    ]
    assert run.train().global_step == 1


@pytest.mark.parametrize(
    ("device", "full_determinism", "sentence"),
    [("mps", False, "has no float64"), ("cuda", True, "full_determinism forbids sums"), ("cuda", False, None)],
)
def test_devices_and_modes_that_cannot_draw_are_refused(device, full_determinism, sentence):
    args = SimpleNamespace(device=torch.device(device), full_determinism=full_determinism)
    if sentence is None:
        check_device(args)
        return
    with pytest.raises(ValueError, match=sentence):
        check_device(args)
