"""``saki teacher`` end to end on the lab, with exit codes as promised."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml

from saki.cli.main import main

needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")

CONFIG = str(Path(__file__).parents[2] / "configs" / "lab_teacher.yaml")
SMALL = ["--prompts_per_step", "2", "--num_generations", "2", "--per_device_train_batch_size", "4"]
SMALL += ["--max_completion_length", "16", "--save_steps", "1", "--report_to", "none"]


def last_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@needs_trl
def test_train_measure_and_resume(capsys, tmp_path, monkeypatch):
    from saki.lab.recipes import HALF_TEACHER

    monkeypatch.setattr("saki.cli.teacher.HALF_TEACHER", HALF_TEACHER.shortened(1))
    out = tmp_path / "t"
    argv = ["teacher", CONFIG, *SMALL, "--out", str(out)]
    assert main([*argv, "--max_steps", "2", "--num_problems", "1", "--json"]) == 0
    facts = last_json(capsys)
    assert facts["steps"] == 2
    stored = json.loads((out / "evaluation.json").read_text())
    for label in ("before", "after"):
        assert facts[f"mean_at_8_{label}"] == pytest.approx(100 * stored[label]["average"]["mean_at_k"], abs=0.01)
    assert facts["mean_at_8_gain"] == pytest.approx(facts["mean_at_8_after"] - facts["mean_at_8_before"], abs=0.02)
    card = (out / "model" / "README.md").read_text()
    assert "| Initial model | lab/half-teacher |" in card
    assert "| mean_at_8_gain |" in card
    built = (out / "initial" / "model.safetensors").stat().st_mtime_ns
    assert main([*argv, "--max_steps", "3"]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main([*argv, "--max_steps", "3", "--num_problems", "0", "--resume", "--json"]) == 0
    assert last_json(capsys)["steps"] == 3
    assert (out / "initial" / "model.safetensors").stat().st_mtime_ns == built  # not built anew
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [1, 2, 3]
    resolved = out / "config.resolved.yaml"
    assert yaml.safe_load(resolved.read_text())["prompts_per_step"] == 2
    again = ["teacher", str(resolved), "--out", str(tmp_path / "again"), "--max_steps", "1"]
    assert main([*again, "--model", "lab/student", "--num_problems", "0"]) == 0


@needs_trl
def test_a_run_killed_while_its_model_is_built_can_be_resumed(capsys, tmp_path, monkeypatch):
    from saki.lab.recipes import HALF_TEACHER

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("saki.cli.teacher.HALF_TEACHER", HALF_TEACHER.shortened(1))
    argv = ["teacher", CONFIG, *SMALL, "--out", str(tmp_path / "t"), "--max_steps", "1", "--num_problems", "0"]
    with monkeypatch.context() as context:
        context.setattr("saki.lab.build_model", killed)
        assert main(argv) == 130
    assert main([*argv, "--resume"]) == 0


@needs_trl
def test_a_reward_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_reward.py").write_text("def long(completion, answer):\n    return len(completion) > 3\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Compute 1+1:", "answer": 2}\n' * 2)
    argv = ["teacher", "--model", "lab/student", "--dataset", str(tmp_path / "rows.jsonl"), *SMALL, "--use_cpu", "true"]
    argv += ["--max_steps", "1", "--reward", "my_reward:long", "--out", str(tmp_path / "t")]
    assert main(argv) == 0
    (line,) = [json.loads(line) for line in (tmp_path / "t" / "metrics.jsonl").read_text().splitlines()]
    assert line["rewards/correct/mean"] > 0.5


@needs_trl
def test_mathematics_is_graded_by_math_verify(tmp_path, monkeypatch):
    pytest.importorskip("math_verify")
    from saki.evaluation import GradingPool

    graded, original = [], GradingPool.grade

    def spy(pool, completions, answers, *more, **options):
        completions = ["\\boxed{\\frac{1}{2}}" if i % 2 else text for i, text in enumerate(completions)]
        graded.append(original(pool, completions, answers, *more, **options))
        return graded[-1]

    monkeypatch.setattr(GradingPool, "grade", spy)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Compute 1/2:", "answer": "0.5"}\n' * 2)
    argv = ["teacher", "--model", "lab/student", "--dataset", str(tmp_path / "rows.jsonl"), *SMALL, "--use_cpu", "true"]
    argv += ["--max_steps", "1", "--grading_workers", "1", "--grading_seconds", "60", "--out", str(tmp_path / "t")]
    assert main(argv) == 0
    assert [verdict == "correct" for verdict in graded[0]] == [False, True, False, True]
    (line,) = [json.loads(line) for line in (tmp_path / "t" / "metrics.jsonl").read_text().splitlines()]
    assert line["rewards/correct/mean"] == 0.5
    assert line["grading/timeout_share"] == 0


@needs_trl
def test_sigterm_ends_the_step_with_a_checkpoint_and_resume_goes_on(capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "stopping_reward.py").write_text(
        "import os, signal\ncalls = []\n\ndef reward(completion, answer):\n    calls.append(1)\n"
        "    if len(calls) == 6:\n        os.kill(os.getpid(), signal.SIGTERM)\n    return len(calls) % 2 == 0\n"
    )
    argv = ["teacher", CONFIG, *SMALL, "--model", "lab/student", "--max_steps", "3", "--num_problems", "0"]
    argv += ["--save_strategy", "no", "--reward", "stopping_reward:reward", "--out", str(tmp_path / "t")]
    assert main(argv) == 143
    assert "stopped after step 2 of 3" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "t" / "checkpoints").glob("checkpoint-*")] == ["checkpoint-2"]
    assert main([*argv, "--resume", "--json"]) == 0
    assert last_json(capsys)["steps"] == 3


@needs_trl
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "lab"], "saki teacher needs --model"),
        (["--model", "lab/student"], "saki teacher needs --dataset"),
        (["--model", "lab/student", "--dataset", "x.parquet"], "there is no data set at 'x.parquet'"),
        (["--model", "lab/student", "--dataset", "lab", "--reward", "no_such:f"], "cannot be imported"),
        (["--model", "lab/student", "--dataset", "lab", "--reward", "json"], "cannot be imported"),
        (["--model", "lab/student", "--dataset", "lab", "--reward", "saki:__version__"], "is a str, expected a func"),
        (["--model", "lab/student", "--dataset", "x.parquet", "--num_problems", "3"], "needs --dataset lab"),
        (["--model", "lab/student", "--num_problems", "2000"], "num_problems: the test split of 'gcd' gave"),
        (["--model", "lab/student", "--dataset", "lab", "--grading_seconds", "0"], "grading_seconds must be at least"),
        (["--num_generation", "3"], "did you mean 'num_generations'"),
        (["--model", "lab/half"], "there is no model 'lab/half' in the lab"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(capsys, tmp_path, words, message):
    assert main(["teacher", *words, "--use_cpu", "true", "--out", str(tmp_path / "t")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "t").exists()


def test_without_trl_one_sentence_says_so_and_help_works(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["teacher", CONFIG]) == 2
    assert "saki teacher needs TRL; install the extra with: pip install 'saki[teacher]'" in capsys.readouterr().err
    assert main(["teacher", "--help"]) == 0
    assert "example: saki teacher" in capsys.readouterr().out


def test_the_gain_is_paired_by_problem():
    from saki.cli.teacher import gain
    from saki.evaluation import EvaluationResult, SetResult

    def result(*matrices):
        return EvaluationResult.from_sets(
            [
                SetResult.from_correct(f"s{i}", np.array(each, dtype=bool), truncated=0.0, timeouts=0, num_tokens=1)
                for i, each in enumerate(matrices)
            ]
        )

    easy, hard = [1, 1], [0, 0]
    before = result([easy, hard, hard], [hard, easy, hard])
    after = result([easy, hard, [1, 0]], [hard, easy, [1, 0]])
    mean, passed = gain(before, after)
    assert mean.value == pytest.approx(0.5 / 3)
    assert passed.value == pytest.approx(1 / 3)
    # Unpaired, problems that both solve would spread; paired they cancel, and no difference is below 0.
    assert mean.interval.low >= 0
    same, _ = gain(before, before)
    assert same.interval.to_json() == [0.0, 0.0]
