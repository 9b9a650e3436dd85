"""Real signals to a real process of the command line: exit codes, one sentence, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from saki.training.checkpoint import list_checkpoints

LAB_YAML = str(Path(__file__).parents[2] / "configs" / "lab.yaml")
# A shell that starts tests in the background ignores SIGINT, and children inherit that.
START = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from saki.cli.main import main; "


def start(argv, before=""):
    return subprocess.Popen(
        [sys.executable, "-c", f"{START}{before}sys.exit(main({argv!r}))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, process, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def lines(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def timeless(folder):
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "sync/"))} for line in lines(folder)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_train_stops_with_a_checkpoint_and_goes_on(tmp_path):
    argv = ["train", LAB_YAML, "--max_steps", "8", "--prompts_per_step", "4", "--per_device_train_batch_size", "16"]
    argv += ["--max_completion_length", "32", "--save_steps", "100"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    process = start([*argv, "--out", str(whole)])
    assert process.communicate(timeout=120)[1] is not None
    assert process.returncode == 0
    for signum, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        seen = len(lines(cut))
        process = start([*argv, "--out", str(cut), *(["--resume"] if seen else [])])
        wait_for(lambda: len(lines(cut)) > seen, process)  # noqa: B023  (called in this round only)
        process.send_signal(signum)
        error = process.communicate(timeout=120)[1]
        assert process.returncode == code, error
        assert "Traceback" not in error
        newest = list_checkpoints(cut / "checkpoints")[0]
        last = error.strip().splitlines()[-1]
        assert last.startswith(f"saki: {signal.Signals(signum).name}: stopped after step ")
        assert str(newest) in last
        assert "--resume" in last
        assert lines(cut)[-1]["step"] == int(newest.name.removeprefix("checkpoint-")) < 8
        assert not (cut / "model").exists()
    process = start([*argv, "--out", str(cut), "--resume"])
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 0, error
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (cut, whole))
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert timeless(cut) == timeless(whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("argv", "started"),
    [
        (["demo", "--num_problems", "50", "--out"], "samples"),
        (["eval", "--model", "lab/student", "--num_problems", "300", "--out"], "samples"),
        (["lab", "build", "--out"], "."),
        (["train", LAB_YAML, "--out"], "."),  # still loading: there is no step to end
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_other_moments_leave_with_one_sentence(tmp_path, argv, started):
    for signum, code, word in ((signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")):
        out = tmp_path / word
        process = start([*argv, str(out)])
        wait_for(lambda: (out / started).exists(), process)  # noqa: B023  (called in this round only)
        process.send_signal(signum)
        error = process.communicate(timeout=60)[1]
        assert process.returncode == code, error
        assert "Traceback" not in error
        assert error.strip().splitlines()[-1] == f"saki: {word}; what was written stays"
        assert not [path for path in out.rglob("*") if path.name.startswith(".")]


def test_rollout_leaves_with_one_sentence(capsys, monkeypatch):
    """In this process: a signal while the engine draws."""
    from saki.cli.main import main
    from saki.rollout import ResidentEngine

    for signum, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            monkeypatch.setattr(ResidentEngine, "generate", lambda *_, s=signum: os.kill(os.getpid(), s))
            assert main(["rollout", "--limit", "1"]) == code
        finally:
            signal.signal(signal.SIGINT, before)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.strip().splitlines()[-1].endswith("; what was written stays")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
