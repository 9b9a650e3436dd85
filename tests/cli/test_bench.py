"""``saki bench`` end to end with tiny settings."""

from __future__ import annotations

import json

import pytest

from saki.cli.main import main


def last_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_rollout_writes_its_table_and_ends_in_json(capsys, tmp_path):
    out = tmp_path / "bench"
    argv = ["bench", "rollout", "--batch-size", "2", "--max_completion_length", "6", "--prompt_length", "4"]
    argv += ["--repeats", "1", "--arms", "student_only,exact_q,hf_generate", "--out", str(out), "--json"]
    assert main(argv) == 0
    result = last_json(capsys)
    assert {"device", "commit", "workload", "arms"} <= set(result)
    assert set(result["arms"]) == {"student_only", "exact_q", "hf_generate"}
    assert result["workload"]["tokens"] == 12
    assert json.loads((out / "rollout.json").read_text())["arms"] == result["arms"]
    assert "tok/s" in (out / "rollout.txt").read_text()


def test_rollout_of_two_folders(capsys):
    argv = ["bench", "rollout", "--preset", "smollm2", "--model", "lab/student", "--teacher_model", "lab/teacher"]
    argv += ["--batch_size", "2", "--max_completion_length", "6", "--prompt_length", "20", "--repeats", "1"]
    assert main([*argv, "--arms", "student_only,exact_q,hf_generate,hf_assisted", "--json"]) == 0
    result = last_json(capsys)
    assert set(result["arms"]) == {"student_only", "exact_q", "hf_generate", "hf_assisted"}
    assert result["workload"]["prompt_length"] == 20


def test_rollout_compares_continuous_with_static_batching(capsys):
    argv = ["bench", "rollout", "--batch-size", "2", "--requests", "4", "--max_completion_length", "8"]
    argv += ["--prompt_length", "4", "--lengths", "lognormal", "--repeats", "1", "--json"]
    assert main(argv) == 0
    result = last_json(capsys)
    assert set(result["arms"]) == {"student_only", "student_only_static", "exact_q", "exact_q_static"}


def test_bridge(capsys):
    assert main(["bench", "bridge", "--vocab", "300", "--rows", "2", "--repeats", "1", "--json"]) == 0
    assert set(last_json(capsys)["vocab"]) == {"300"}


def test_train_needs_trl(capsys, monkeypatch):
    monkeypatch.setattr("saki.benchmarking.training.importlib.util.find_spec", lambda name: None)
    argv = ["bench", "train", "--batch_size", "1", "--prompt_length", "2", "--max_completion_length", "2"]
    assert main(argv) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "saki: saki bench train needs TRL" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "saki bench takes rollout, bridge or train, got nothing"),
        (["rollouts"], "got 'rollouts'"),
        (["rollout", "--preset", "small"], "preset must be one of"),
        (["rollout", "--preset", "tiny", "--model", "lab/student"], "preset 'tiny' takes no folders; leave them out"),
        (["rollout", "--preset", "folders", "--model", "lab/student"], "give --model and --teacher_model"),
        (["rollout", "--arms", "fast"], "arms must be distinct names"),
        (["rollout", "--lengths", "long"], "lengths must be fixed or lognormal"),
        (["rollout", "--trust_region_radius", "0"], "trust_region_radius must be above 0"),
        (["rollout", "--requests", "3", "--samples_per_prompt", "2"], "multiple of samples_per_prompt"),
        (["bridge", "--vocab", "4096,big"], "vocab must be sizes"),
        (["bridge", "--vocab", "²"], "vocab must be sizes"),
        (["train", "--methods", "opdd"], "did you mean 'opd'"),
        (["train", "--preset", "qwen3-shapes"], "no tokenizer"),
    ],
)
def test_mistakes_are_one_sentence(capsys, words, message):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_help_of_each(capsys):
    for name in ("rollout", "bridge", "train"):
        assert main(["bench", name, "--help"]) == 0
        assert f"example: saki bench {name}" in capsys.readouterr().out
