"""Checkpoints: damage of every kind is named, and the last good one is found."""

import json

import pytest

from saki.training.checkpoint import (
    MANIFEST,
    CheckpointError,
    check_checkpoint,
    last_good_checkpoint,
    list_checkpoints,
    publish,
    write_manifest,
)

FACTS = {"method": "saki", "seed": 1}


def checkpoint(root, step):
    staged = root / ".staging" / f"checkpoint-{step}"
    staged.mkdir(parents=True)
    (staged / "model.safetensors").write_bytes(b"weights" * step)
    (staged / "optimizer.pt").write_bytes(b"state")
    write_manifest(staged, FACTS)
    publish(staged, root / f"checkpoint-{step}")
    return root / f"checkpoint-{step}"


def test_order_and_the_last_good_one(tmp_path):
    for step in (9, 10, 100):
        checkpoint(tmp_path, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-100", "checkpoint-10", "checkpoint-9"]
    (tmp_path / "checkpoint-100" / "optimizer.pt").write_bytes(b"stat")
    path, refused = last_good_checkpoint(tmp_path, FACTS)
    assert path.name == "checkpoint-10"
    assert len(refused) == 1
    assert "4 bytes" in refused[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / MANIFEST).unlink(), "not a finished checkpoint"),
        (lambda path: (path / MANIFEST).write_text("{"), "not readable JSON"),
        (lambda path: (path / "optimizer.pt").unlink(), "lacks optimizer.pt"),
        (lambda path: (path / "optimizer.pt").write_bytes(b"stat"), "holds 4 bytes"),
        (lambda path: (path / "optimizer.pt").write_bytes(b"statf"), "damaged"),
        (
            lambda path: (path / MANIFEST).write_text(json.dumps({"schema_version": 9, "facts": {}, "files": {}})),
            "schema version 9",
        ),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    path = checkpoint(tmp_path, 1)
    check_checkpoint(path, FACTS)
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        check_checkpoint(path, FACTS)
    assert last_good_checkpoint(tmp_path, FACTS)[0] is None


def test_foreign_runs_are_refused(tmp_path):
    path = checkpoint(tmp_path, 1)
    with pytest.raises(CheckpointError, match="method = 'saki', this run has 'opd'"):
        check_checkpoint(path, {"method": "opd"})


def test_an_older_checkpoint_of_the_same_step_is_replaced(tmp_path):
    checkpoint(tmp_path, 1)
    (tmp_path / "checkpoint-1" / "stray").write_text("x")
    checkpoint(tmp_path, 1)
    assert not (tmp_path / "checkpoint-1" / "stray").exists()
