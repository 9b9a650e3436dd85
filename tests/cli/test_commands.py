"""Every command end to end on the embedded pair, with exit codes as promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from saki.cli.main import COMMANDS, main
from saki.rollout import read_rollouts

LAB_YAML = str(Path(__file__).parents[2] / "configs" / "lab.yaml")


def last_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_help(capsys):
    assert main([]) == 0
    assert "saki demo --out" in capsys.readouterr().out
    assert main(["--version"]) == 0
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert "example: saki" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'"),
        (["rollout", "--trust_region_radius", "-1"], "trust_region_radius must be at least 0"),
        (["rollout", "--block_size", "0"], "block_size must be at least 1"),
        (["rollout", "--method", "sakki"], "did you mean 'saki'"),
        (["rollout", "--model", "/no/such/folder"], "no checkpoint folder"),
        (["rollout", "--dtype", "int4"], "dtype must be one of"),
        (["rollout", "--device", "cuda:77"], "device 'cuda:77' is not available"),
        (["rollout", "--dataset", "/no/such/file.parquet"], "no/such/file.parquet"),
        (["eval", "--benchmarks", "sums"], "unknown benchmark 'sums'"),
        (["eval", "--num_samples", "0"], "num_samples must be at least 1"),
        (["train", "--method", "opd"], "saki train needs --model"),
        (["lab", "build"], "needs --out"),
        (["verify", "--alpha", "2"], "alpha must lie in (0, 1)"),
        (["verify", "--trust_region_radius", "0"], "trust_region_radius must be above 0"),
        (["demo", "--max_step", "3"], "did you mean 'max_steps'"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(capsys, argv, message):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1


def test_rollout(capsys, tmp_path):
    out = tmp_path / "r"
    argv = ["rollout", "--limit", "3", "--num-generations", "2", "--trust_region_radius", "0.3", "--out", str(out)]
    assert main([*argv, "--json"]) == 0
    summary = last_json(capsys)
    batch, facts = read_rollouts(out / "rollouts.parquet")
    assert summary["completions"] == len(batch) == 6
    assert facts == {"method": "saki"}
    assert 0 < summary["correction_rate"] < summary["pinsker_bound"]
    assert main([*argv]) == 2  # the folder is taken
    assert "is not empty" in capsys.readouterr().err


def test_eval(capsys, tmp_path):
    argv = ["eval", "--model", "lab/teacher", "--num_problems", "4", "--num_samples", "2", "--out", str(tmp_path / "e")]
    assert main([*argv, "--json"]) == 0
    result = last_json(capsys)
    assert len(result["benchmarks"]) == 7
    assert result["average"]["mean_at_k"] > 0.3
    assert (tmp_path / "e" / "evaluation.md").read_text().startswith("| benchmark")


def test_verify(capsys, tmp_path):
    out = tmp_path / "v"
    argv = [
        "verify",
        "--max_tokens",
        "600",
        "--limit",
        "4",
        "--max_completion_length",
        "16",
        "--out",
        str(out),
        "--json",
    ]
    assert main(argv) == 0
    certificate = last_json(capsys)
    assert certificate["verdict"] == "pass"
    assert certificate == json.loads((out / "certificate.json").read_text())
    assert (out / "certificate.md").read_text().startswith("# saki verify: pass")


def test_verify_says_no(capsys, monkeypatch):
    from saki.rollout import ResidentEngine
    from tests.statistical.mutants import StaleCache

    monkeypatch.setattr(ResidentEngine, "unit_type", StaleCache)
    argv = ["verify", "--max_tokens", "600", "--trust_region_radius", "0.5", "--limit", "4", "--json"]
    assert main(argv) == 1
    assert last_json(capsys)["verdict"] == "fail"


def test_train_and_resume(capsys, tmp_path):
    out = tmp_path / "t"
    small = ["--prompts_per_step", "4", "--per_device_train_batch_size", "16", "--save_steps", "1", "--out", str(out)]
    small += ["--max_completion_length", "24", "--radius_anneal_steps", "2"]
    evaluation = ["--eval_dataset", "lab/development", "--eval_strategy", "steps", "--eval_steps", "2"]
    assert main(["train", LAB_YAML, "--max_steps", "2", *small, *evaluation, "--json"]) == 0
    first = last_json(capsys)
    assert first["steps"] == 2
    assert (out / "report.html").is_file()
    assert first["trace"] == str(out / "trace.html")
    assert "Mean@1: " in (out / "report.html").read_text()  # what was measured on the evaluation prompts
    assert (out / "model" / "model.safetensors").is_file()
    assert not list(out.rglob("training_args.bin"))  # no pickle in what a user passes on
    assert main(["train", LAB_YAML, "--max_steps", "3", *small]) == 2
    assert "add --resume" in capsys.readouterr().err
    resolved = (out / "config.resolved.yaml").read_bytes()
    assert main(["train", LAB_YAML, "--max_steps", "3", *small, "--resume", "--seed", "5"]) == 2
    assert "seed = 0, this run has 5" in capsys.readouterr().err
    assert (out / "config.resolved.yaml").read_bytes() == resolved  # the record of the run that is there
    assert main(["train", LAB_YAML, "--max_steps", "3", *small, "--resume", "--json"]) == 0
    assert last_json(capsys)["steps"] == 3
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3]
    assert [line["step"] for line in lines if "eval/mean_at_1" in line] == [2]
    assert main(["rollout", "--model", str(out / "model"), "--limit", "1", "--num_generations", "1"]) == 0


def test_a_diverged_loss_is_one_sentence_and_exit_code_1(capsys, tmp_path, monkeypatch):
    from saki.training import SakiTrainer

    original = SakiTrainer.compute_loss

    def poisoned(self, model, *args, **kwargs):
        loss = original(self, model, *args, **kwargs)
        if self.state.global_step == 1:
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
            return original(self, model, *args, **kwargs)
        return loss

    monkeypatch.setattr(SakiTrainer, "compute_loss", poisoned)
    out = tmp_path / "t"
    small = ["--prompts_per_step", "4", "--per_device_train_batch_size", "16", "--save_steps", "1", "--out", str(out)]
    argv = ["train", LAB_YAML, "--max_steps", "3", "--max_completion_length", "16", *small]
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    last = error.strip().splitlines()[-1]
    assert last.startswith("saki: the loss of step 2 is nan; ")
    assert str(out / "rollouts" / "step-000002.parquet") in last
    assert str(out / "checkpoints" / "checkpoint-1") in last
    assert main([*argv, "--resume", "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_demo(capsys, tmp_path):
    out = tmp_path / "d"
    argv = ["demo", "--max_steps", "4", "--num_problems", "2", "--out", str(out), "--json"]
    assert main(argv) == 0
    summary = last_json(capsys)
    assert summary["pinsker_violations"] == 0
    assert summary["teacher_q_forwards_during_anneal"] > 0
    assert summary["teacher_q_forwards_after_anneal"] == 0
    assert summary["report"] == str(out / "report.html")
    assert "Pinsker" in (out / "report.html").read_text()
    assert 'href="trace.html#step-' in (out / "report.html").read_text()
    assert summary["trace"] == str(out / "trace.html")
    again = tmp_path / "again"
    assert main(["train", str(out / "config.resolved.yaml"), "--out", str(again)]) == 0
    weights = "model/model.safetensors"
    assert (again / weights).read_bytes() == (out / weights).read_bytes()


def test_lab(capsys):
    assert main(["lab", "--json"]) == 0
    assert len(last_json(capsys)["test_sets"]) == 7
