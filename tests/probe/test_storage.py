"""Probes and measurements on disk: a round trip, and one sentence for whatever is wrong with a file."""

from __future__ import annotations

import json
from dataclasses import fields

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from saki.probe import (
    MEASURES,
    Measurement,
    Positions,
    ProbeFileError,
    read_measurement,
    read_probe,
    write_measurement,
    write_probe,
)
from tests.probing import tiny_probe

FILES = ("positions.parquet", "sequences.parquet", "teacher.safetensors", "manifest.json")


@pytest.fixture(scope="module")
def probe():
    return tiny_probe(teacher_top=5)


@pytest.fixture
def folder(probe, tmp_path):
    write_probe(tmp_path / "probe", probe)
    return tmp_path / "probe"


@pytest.fixture
def file(probe, tmp_path):
    path = tmp_path / "m.parquet"
    write_measurement(path, Measurement(probe.initial, "abc", "trb", 50, 3, "123"))
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def refused(read, path, *phrases):
    with pytest.raises(ProbeFileError) as error:
        read(path)
    sentence = str(error.value)
    assert len(sentence.splitlines()) == 1
    for phrase in phrases:
        assert phrase in sentence


def test_round_trip(folder, probe):
    back = read_probe(folder)
    assert back.digest == write_probe(folder, probe).digest
    assert back.sequences == probe.sequences
    for each in fields(Positions):
        a, b = getattr(back.positions, each.name), getattr(probe.positions, each.name)
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    for name in MEASURES:
        assert torch.equal(getattr(back.initial, name), getattr(probe.initial, name))
    assert torch.equal(back.teacher.ranked_ids, probe.teacher.ranked_ids)
    assert torch.equal(back.teacher.logprobs, probe.teacher.logprobs)
    assert (back.teacher.whole, back.top_k, back.vocab_size) == (False, 3, 22)
    assert back.facts["made"] == "by a test"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_empty_cut_short_or_missing(folder, name):
    path = folder / name
    content = path.read_bytes()
    cut(path)
    refused(read_probe, folder, name, "damaged or cut short", "again")
    path.write_bytes(b"")
    refused(read_probe, folder, name, "is empty", "again")
    path.unlink()
    refused(read_probe, folder, "no manifest.json" if name == "manifest.json" else f"lacks {name}")
    path.write_bytes(content)
    assert read_probe(folder)


@pytest.mark.parametrize("name", FILES[:3])
def test_a_single_changed_bit_shows(folder, name):
    flip(folder / name)
    refused(read_probe, folder, name, "its checksum is not that of the manifest")


def test_another_version_and_another_folder(folder, tmp_path):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 2}))
    refused(read_probe, folder, "has schema version 2, this saki reads 1", "build it again")
    (folder / "manifest.json").write_text("[1]")
    refused(read_probe, folder, "is not the manifest of a probe")
    refused(read_probe, tmp_path / "nothing", "there is no probe in")


def test_measurement_round_trip(file, probe):
    back = read_measurement(file)
    assert (back.probe, back.label, back.step, back.top_k, back.model_checksum) == ("abc", "trb", 50, 3, "123")
    for name in MEASURES:
        assert torch.equal(getattr(back.measures, name), getattr(probe.initial, name))
    assert back.means()["c1"] == float(probe.initial.c1.mean())
    write_measurement(file, Measurement(probe.initial, "abc", "trb", None, 3, "123"))
    assert read_measurement(file).step is None


def test_a_measurement_that_is_empty_cut_short_missing_or_something_else(file, tmp_path):
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    refused(read_measurement, file, "damaged or cut short", "measure the checkpoint again")
    file.write_bytes(content)
    flip(file)
    refused(read_measurement, file, "damaged or cut short")
    file.write_bytes(b"")
    refused(read_measurement, file, "is empty")
    refused(read_measurement, tmp_path / "nothing.parquet", "there is no measurement")
    pq.write_table(pa.table({"a": [1]}), file)
    refused(read_measurement, file, "is parquet, but not a measurement of a probe")


def test_a_measurement_of_another_version(file):
    table = pq.read_table(file)
    meta = json.loads(table.schema.metadata[b"saki_probe"])
    for changed, phrase in ((meta | {"schema_version": 2}, "has schema version 2, this saki reads 1"), (meta, None)):
        rows = table if phrase else table.slice(0, 0)
        pq.write_table(rows.replace_schema_metadata({b"saki_probe": json.dumps(changed).encode()}), file)
        refused(read_measurement, file, phrase or "holds no position")
