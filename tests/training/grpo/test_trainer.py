"""GRPO through TRL in saki's run folder: what is rolled out, what is learnt, what a kill costs."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl")

from saki.data import render_prompts
from saki.models import tiny_qwen3
from saki.training import CheckpointError
from saki.training.grpo import one_by_one
from saki.training.grpo.config import TeacherConfig
from saki.training.grpo.prompts import graded_prompts
from saki.training.grpo.trainer import TeacherTrainer
from tests.tiny import VOCAB, tiny_rows, tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.content }} {% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}t{% endif %}"
)


def rows(num):
    return [{**row, "answer": "c"} for row in tiny_rows(num)]


def says_c(text, gold):
    return gold in text.split()


def tiny_teacher():
    model = tiny_qwen3(VOCAB + 3, seed=1, scale=0.3)  # three ids beyond the vocabulary
    model.config.eos_token_id = model.generation_config.eos_token_id = 1
    return model


def config(folder, **options):
    values = {
        "max_steps": 4,
        "prompts_per_step": 4,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_prompt_length": 16,
        "max_completion_length": 6,
        "learning_rate": 1e-2,
        "save_steps": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    return TeacherConfig(output_dir=str(folder), **values)


def trainer(folder, data=None, reward=says_c, **options):
    return TeacherTrainer(
        tiny_teacher(), config(folder, **options), data or rows(16), tiny_tokenizer(), one_by_one(reward)
    )


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "time" not in key and "runtime" not in key} for line in lines]


def test_the_reward_rises(tmp_path):
    made = trainer(tmp_path, max_steps=25, save_steps=100)
    made.train()
    rewards = [entry["reward"] for entry in made.state.log_history if "reward" in entry]
    assert len(rewards) == 25
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.3


def test_a_step_rolls_out_its_prompts_and_updates_once(tmp_path):
    seen = []

    def reward(text, gold):
        seen.append(text)
        return says_c(text, gold)

    made = trainer(tmp_path, max_steps=3, reward=reward)
    made.train()
    assert len(seen) == 3 * 4 * 4  # steps x prompts x completions
    assert made.state.global_step == 3
    assert made.args.gradient_accumulation_steps == made.args.steps_per_generation == 2
    assert all(entry["clip_ratio/region_mean"] == 0 for entry in made.state.log_history if "reward" in entry)


def test_ids_beyond_the_vocabulary_and_after_the_end_are_never_sampled(tmp_path, monkeypatch):
    made, drawn = trainer(tmp_path, max_steps=2), []
    original = made._generate_single_turn

    def spy(*args, **kwargs):
        drawn.append(original(*args, **kwargs)[0])
        return drawn[-1], None

    monkeypatch.setattr(made, "_generate_single_turn", spy)
    with torch.no_grad():  # what has no probability in training would be the likeliest here
        made.model.get_output_embeddings().weight[VOCAB:] *= 30
    made.train()
    rows_drawn = [ids for turn in drawn for ids in turn]
    assert all(max(ids) < VOCAB and 1 not in ids[:-1] for ids in rows_drawn)
    assert any(1 in ids for ids in rows_drawn)


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_the_model_reads_the_ids_that_saki_renders(tmp_path, template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    data = [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": "c"} for row in tiny_rows(8)]
    made = TeacherTrainer(tiny_teacher(), config(tmp_path), data, tokenizer, one_by_one(says_c))
    ids, _, _ = made._tokenize_prompts(made.train_dataset["prompt"][:])
    expected = [list(prompt.token_ids) for prompt in render_prompts(data, tokenizer, max_prompt_length=16).prompts]
    assert ids == expected
    assert made.train_dataset[0]["answer"] == "c"


def test_too_long_prompts_are_dropped_and_a_missing_answer_is_named():
    data = [{"prompt": "a b c", "answer": 1}, {"prompt": "a", "answer": 2}]
    kept, rendered = graded_prompts(data, tiny_tokenizer(), 2)
    assert kept[:] == {"prompt": ["a"], "answer": ["2"]}
    assert rendered.dropped["too_long"] == 1
    with pytest.raises(ValueError, match="row 1 of the data set has no answer"):
        graded_prompts([data[0], {"prompt": "a", "answer": None}], tiny_tokenizer(), 9)


def test_a_run_cut_short_and_resumed_ends_as_one_that_was_not(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    made = trainer(whole)
    made.train()
    made.save_model()
    torch.manual_seed(77)  # the state that the resumed process happens to be in must not matter

    class KilledError(Exception):
        pass

    calls = []

    def reward(text, gold):
        calls.append(text)
        if len(calls) > 3 * 16 - 5:  # in the middle of step 3, after the checkpoint of step 2
            raise KilledError
        return says_c(text, gold)

    with pytest.raises(KilledError):
        trainer(cut, reward=reward).train()
    assert [path.name for path in (cut / "checkpoints").iterdir() if path.is_dir()] == ["checkpoint-2"]
    resumed = trainer(cut)
    resumed.train(resume_from_checkpoint=True)
    resumed.save_model()
    assert logged(cut) == logged(whole)
    one, two = weights(whole), weights(cut)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    shutil.rmtree(cut / "checkpoints" / "checkpoint-4")
    with pytest.raises(CheckpointError, match="num_generations = 4, this run has 2"):
        trainer(cut, num_generations=2).train(resume_from_checkpoint=True)


def test_a_late_grading_trains_nothing_and_is_logged(tmp_path):
    late = TeacherTrainer(
        tiny_teacher(), config(tmp_path, max_steps=1), rows(8), tiny_tokenizer(), lambda c, a: [None] * len(c)
    )
    before = {name: value.clone() for name, value in late.model.named_parameters()}
    late.args.weight_decay = 0.0
    late.train()
    (entry,) = [entry for entry in late.state.log_history if "grading/timeout_share" in entry]
    assert entry["grading/timeout_share"] == 1.0
    assert all(torch.equal(before[name], value) for name, value in late.model.named_parameters())


def test_the_run_folder_and_the_card(tmp_path):
    made = trainer(tmp_path / "t", max_steps=2)
    made.names.model = "Qwen/Qwen3-4B-Base"
    made.train()
    made.save_model()
    folder = tmp_path / "t"
    assert {path.name for path in folder.iterdir()} == {"checkpoints", "metrics.jsonl", "model"}
    assert not list(folder.rglob("training_args.bin"))
    card = (folder / "model" / "README.md").read_text()
    assert "base_model: Qwen/Qwen3-4B-Base" in card
    assert "| method | grpo |" in card
    assert "| Mean reward |" in card
    assert not list((folder / "checkpoints").rglob("README.md"))


def test_nothing_is_reported_to_anybody(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda **_: pytest.fail("telemetry"))
    trainer(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_device_train_batch_size": 5}, "must be a multiple of"),
        ({"num_generations": 1}, "num_generations must be at least 2"),
        ({"gradient_accumulation_steps": 7}, "gradient_accumulation_steps follows from the step's size and is 2"),
        ({"steps_per_generation": 4}, "follow from prompts_per_step"),
        ({"push_to_hub": True, "hub_strategy": "checkpoint"}, "would upload checkpoints"),
    ],
)
def test_mistakes(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **options)


def test_too_few_prompts(tmp_path):
    with pytest.raises(ValueError, match="a step needs 4 prompts, but only 3"):
        trainer(tmp_path, rows(3))


def test_gradient_checkpointing_by_its_old_name_warns_of_nothing(tmp_path):
    args = config(tmp_path, gradient_checkpointing=True)
    assert args.gradient_checkpointing
    assert not config(tmp_path).gradient_checkpointing
