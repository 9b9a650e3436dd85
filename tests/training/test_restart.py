"""A run killed at any moment and resumed ends as one never killed: weights, optimizer, log, rollouts, file names."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from tests.training.restart_driver import EVENTS, WRITERS, train

ROOT = Path(__file__).parents[2]
NUM_KILLS = 20


class Driver:
    """Asks the driver process to train in a fork; tells whether the fork was killed."""

    def __init__(self):
        paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.restart_driver"],
            cwd=ROOT,
            env={**os.environ, **threads, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, folder, kill=None):
        self.process.stdin.write(json.dumps({"folder": str(folder), "kill": kill}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        log = Path(f"{folder}.log")
        assert answer["code"] in (0, -9), log.read_text()
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def driver():
    process = Driver()
    yield process
    process.close()


def timeless(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "sync/", "eval/seconds"))} for line in lines]


def assert_equal_runs(folder, reference):
    """Bit-equal weights and optimizer, equal log and rollouts, and no file more or less."""
    names = [sorted(str(path.relative_to(root)) for path in root.rglob("*")) for root in (folder, reference)]
    assert names[0] == names[1]
    for name in ("model", "checkpoints/checkpoint-4", "checkpoints/checkpoint-6"):
        ours, theirs = (load_file(root / name / "model.safetensors") for root in (folder, reference))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name
    for name in ("optimizer.pt", "scheduler.pt"):
        ours, theirs = (torch.load(root / "checkpoints/checkpoint-6" / name) for root in (folder, reference))
        assert flat(ours) == flat(theirs)
    assert timeless(folder) == timeless(reference)
    assert [line["step"] for line in timeless(folder) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in timeless(folder) if "eval/kl_to_teacher" in line] == [3, 6]
    for step in range(1, 7):
        name = f"rollouts/step-{step:06d}.parquet"
        ours, theirs = (pq.read_table(root / name) for root in (folder, reference))
        assert ours.equals(theirs, check_metadata=True), name


def flat(value):
    """Tensors as bytes, so that states compare with ==."""
    if isinstance(value, dict):
        return {key: flat(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [flat(each) for each in value]
    return value.numpy().tobytes() if torch.is_tensor(value) else value


def moments(counts, seconds):
    """Twenty seeded moments: file events, half-written files of every sort, and moments by the clock."""
    draw = random.Random(1)
    events = [{"at": kind, "count": n} for kind in EVENTS for n in range(1, counts[kind] + 1)]
    chosen = draw.sample(events, 8)
    for kind, times in (("torch.save", 2), ("safetensors", 2), ("parquet", 2), ("append", 2), ("manifest", 1)):
        chosen += [{"at": kind, "count": n} for n in draw.sample(range(1, counts[kind] + 1), times)]
    chosen += [{"at": kind, "count": 1} for kind in ("parquet", "append")]  # before the first checkpoint
    chosen.append({"seconds": draw.uniform(0.2, 0.8) * seconds})
    assert len(chosen) == NUM_KILLS
    return chosen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_twenty_moments(driver, tmp_path):
    reference = tmp_path / "reference"
    whole = driver.train(reference)
    assert whole["signal"] == 0
    assert set(whole["counts"]) == {*EVENTS, *WRITERS}
    num_cuts = 0
    for index, kill in enumerate(moments(whole["counts"], whole["seconds"])):
        folder = tmp_path / f"killed-{index}"
        while driver.train(folder, kill)["signal"] != 9:
            assert "seconds" in kill, kill
            kill["seconds"] /= 2  # the fork was done before its time
            shutil.rmtree(folder)
        if index % 3 == 0:  # the resumed run is killed as well, in the middle of cutting the log back
            num_cuts += driver.train(folder, {"at": "cut", "count": 1})["signal"] == 9
        assert driver.train(folder)["signal"] == 0
        assert_equal_runs(folder, reference)
        shutil.rmtree(folder)
    assert num_cuts == 7


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_over_and_over(driver, tmp_path):
    """One run, killed at one more random file event each time until it gets through."""
    reference, folder, draw = tmp_path / "reference", tmp_path / "killed", random.Random(2)
    driver.train(reference)
    kills = [{"at": kind, "count": draw.randint(2, 40)} for kind in ("open", "os.mkdir", "os.rename", "open") * 4]
    died = [driver.train(folder, kill)["signal"] == 9 for kill in kills]
    assert sum(died) >= 8
    driver.train(folder)
    assert_equal_runs(folder, reference)


def test_what_a_kill_leaves_at_renames_resumes(tmp_path, monkeypatch):
    """The quick form: the folder is copied as it is before a rename, which is what a kill there leaves."""
    reference, copies = tmp_path / "reference", []
    rename = os.replace

    def copying(source, target):
        if (reference / "rollouts").exists():
            copies.append(shutil.copytree(reference, tmp_path / f"copy-{len(copies)}"))
        rename(source, target)

    monkeypatch.setattr(os, "replace", copying)
    train(reference)
    monkeypatch.setattr(os, "replace", rename)
    chosen = random.Random(3).sample(copies[1:], 1)
    unrotated = next(path for path in copies if len(list((path / "checkpoints").glob("checkpoint-*"))) > 2)
    for folder in (copies[0], unrotated, *chosen):
        train(folder)
        assert_equal_runs(folder, reference)
