"""Whole files: kills are tested in tests/training/test_restart.py, full disks and errors here."""

from __future__ import annotations

import errno

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from saki.files import DiskFullError, append_text, disk_is_full, whole_file, whole_folder, write_text
from tests.disk import small_disk

BIG = torch.zeros(1 << 20)  # 4 MB


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 1) as disk:
        yield disk


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def half_and_stop(path):
    path.write_text("half")
    raise RuntimeError("stop")


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "eins")
    with pytest.raises(RuntimeError, match="stop"), whole_file(path) as unfinished:
        half_and_stop(unfinished)
    assert path.read_text() == "eins"
    write_text(path, "drei")
    assert path.read_text() == "drei"
    assert names(path.parent) == ["a.txt"]


def test_a_folder_is_whole_or_not_there(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(RuntimeError, match="stop"), whole_folder(path) as unfinished:
        half_and_stop(unfinished / "a")
    assert names(tmp_path) == []
    (tmp_path / ".model.unfinished").mkdir()  # what a kill left
    (tmp_path / ".model.unfinished" / "stale").write_text("x")
    with whole_folder(path) as unfinished:
        (unfinished / "a").write_text("1")
    assert names(tmp_path) == ["model"]
    assert names(path) == ["a"]


def test_a_folder_that_is_there_keeps_its_other_files(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "a").write_text("old")
    (path / "note").write_text("mine")
    with whole_folder(path) as unfinished:
        (unfinished / "a").write_text("new")
        (unfinished / "deep").mkdir()
        (unfinished / "deep" / "b").write_text("new")
    assert {p.name: p.read_text() for p in path.rglob("*") if p.is_file()} == {"a": "new", "note": "mine", "b": "new"}
    assert names(path) == ["a", "deep", "note"]


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save({"a": BIG}, path),
        lambda path: save_file({"a": BIG}, path),
        lambda path: pq.write_table(pa.table({"a": BIG.numpy()}), path, compression="none", use_dictionary=False),
        lambda path: path.write_text("x" * (1 << 21)),
    ],
    ids=["torch", "safetensors", "parquet", "text"],
)
def test_a_full_disk_is_named_whoever_writes(disk, write):
    path = disk.root / "a"
    path.write_text("before")
    said = r"the disk is full: .*/disk/a could not be written; .* make room"
    with pytest.raises(DiskFullError, match=said), whole_file(path) as unfinished:
        write(unfinished)
    assert path.read_text() == "before"
    assert names(disk.root) == ["a"]
    with pytest.raises(DiskFullError), whole_folder(disk.root / "b") as unfinished:
        write(unfinished / "c")
    assert names(disk.root) == ["a"]


def test_a_line_is_appended_whole_or_not_at_all(disk):
    path = disk.root / "metrics.jsonl"
    append_text(path, "first\n")
    disk.fill()
    with pytest.raises(DiskFullError):
        append_text(path, "x" * 10_000 + "\n")
    assert path.read_text() == "first\n"
    disk.free()
    append_text(path, "zweite Zeile: ü\n")
    assert path.read_text(encoding="utf-8") == "first\nzweite Zeile: ü\n"


def test_other_errors_keep_their_names(tmp_path):
    assert disk_is_full(OSError(errno.EDQUOT, "quota"))
    assert not disk_is_full(OSError(errno.EACCES, "denied"))
    assert not disk_is_full(RuntimeError("odd"), tmp_path / "a")
    with pytest.raises(RuntimeError, match="odd"), whole_file(tmp_path / "a"):
        raise RuntimeError("odd")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):  # and not that no hidden file could be taken away there
        write_text(tmp_path / "file" / "a", "")
