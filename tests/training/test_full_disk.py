"""A full disk ends a run with one sentence, loses nothing, and the run goes on to the same end once there is room."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import modeling_utils

import saki.config.parsing
import saki.training.callbacks
import saki.training.whole_checkpoints
from saki.cli.main import main
from saki.files import DiskFullError
from saki.rollout import read_rollouts
from saki.training.checkpoint import check_checkpoint, list_checkpoints
from tests.disk import small_disk
from tests.training.restart_driver import train
from tests.training.test_restart import assert_equal_runs

LAB_YAML = str(Path(__file__).parents[2] / "configs" / "lab.yaml")
WRITERS = {
    "optimizer": (torch, "save", 5),
    "weights": (modeling_utils, "safe_save_file", 2),
    "rollout": (pq, "write_table", 4),
    "log line": (saki.training.callbacks, "append_text", 4),
    "manifest": (saki.training.whole_checkpoints, "write_manifest", 2),
    "rename": (os, "replace", 6),
    "model": (modeling_utils, "safe_save_file", 4),
}


def fill_before(disk, monkeypatch, module, name, count):
    """From the given call of a writer on, there is no room."""
    write, calls = getattr(module, name), []

    def wrapper(*args, **kwargs):
        calls.append(name)
        if len(calls) == count:
            disk.fill()
        return write(*args, **kwargs)

    monkeypatch.setattr(module, name, wrapper)


def assert_whole(folder):
    """Everything under a final name is whole, and nothing half-written is left."""
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]
    for path in list_checkpoints(folder / "checkpoints"):
        check_checkpoint(path, {})
    for path in (folder / "rollouts").glob("*"):
        read_rollouts(path)
    text = (folder / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    assert all("step" in json.loads(line) for line in text.splitlines())


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_stops_and_goes_on(disk, reference):
    """Train until there is no room, look at what is left, make room, go on, compare."""
    folder = disk.root / "run"
    with pytest.raises(DiskFullError, match=r"the disk is full: .* could not be written"):
        train(folder)
    assert_whole(folder)
    disk.free()
    train(folder)
    assert_equal_runs(folder, reference)


@pytest.mark.parametrize("name", ["optimizer", pytest.param("rollout", marks=pytest.mark.slow)])
def test_each_writer_in_turn(tmp_path, monkeypatch, name):
    train(tmp_path / "reference")
    with small_disk(tmp_path / "disk", 16) as disk, monkeypatch.context() as patch:
        fill_before(disk, patch, *WRITERS[name])
        assert_stops_and_goes_on(disk, tmp_path / "reference")


@pytest.mark.slow
def test_the_other_writers(tmp_path, monkeypatch):
    train(tmp_path / "reference")
    for index, name in enumerate(set(WRITERS) - {"optimizer", "rollout"}):
        with small_disk(tmp_path / f"disk-{index}", 16) as disk, monkeypatch.context() as patch:
            fill_before(disk, patch, *WRITERS[name])
            assert_stops_and_goes_on(disk, tmp_path / "reference")


@pytest.mark.slow
def test_disks_of_any_size(tmp_path):
    """Room for a random part of the run: the writer that fails is whichever comes there."""
    train(tmp_path / "reference")
    needed = sum(len(content) for content in contents(tmp_path / "reference").values())
    draw = random.Random(4)
    for index in range(8):
        with small_disk(tmp_path / f"disk-{index}", 16) as disk:
            disk.fill()
            size = disk.ballast.stat().st_size
            with disk.ballast.open("r+b") as stream:
                stream.truncate(size - int(draw.uniform(0.02, 0.9) * needed))
            assert_stops_and_goes_on(disk, tmp_path / "reference")


def test_the_command_line_says_what_to_do(tmp_path, monkeypatch, capsys):
    with small_disk(tmp_path / "disk", 16) as disk:
        out = disk.root / "run"
        argv = ["train", LAB_YAML, "--max_steps", "2", "--prompts_per_step", "4", "--per_device_train_batch_size", "16"]
        argv += ["--max_completion_length", "16", "--save_steps", "1", "--out", str(out)]
        with monkeypatch.context() as patch:
            fill_before(disk, patch, pq, "write_table", 2)
            assert main(argv) == 1
        error = capsys.readouterr().err
        assert "Traceback" not in error
        last = error.strip().splitlines()[-1]
        assert "the disk is full" in last
        assert "step-000002.parquet could not be written" in last
        assert "--resume" in last
        assert_whole(out)
        assert [path.name for path in list_checkpoints(out / "checkpoints")] == ["checkpoint-1"]
        disk.free()
        assert main([*argv, "--resume"]) == 0
        assert (out / "report.html").is_file()
