"""A probe on disk: one folder with a manifest that holds the checksum of every file."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from saki.files import whole_folder
from saki.probe.records import MEASURES, Measures, Positions, Probe, TeacherLaws

SCHEMA_VERSION = 1
"""Written into the manifest; readers refuse other versions."""

MANIFEST, POSITIONS, SEQUENCES, TEACHER = (
    "manifest.json",
    "positions.parquet",
    "sequences.parquet",
    "teacher.safetensors",
)

_KIND = "saki probe"
_INITIAL = "initial_"


class ProbeFileError(ValueError):
    """A probe, or a measurement of one, is missing, damaged or of another version."""


def write_probe(folder: Path, probe: Probe) -> Probe:
    """Write a probe, whole or not at all.

    ======================  ================================================================================
    ``manifest.json``       schema version, sizes, how the probe was made, and each file's BLAKE2b checksum
    ``positions.parquet``   a row a position: the fields of :class:`Positions`, and ``initial_*`` figures
    ``sequences.parquet``   ``token_ids`` of prompt and response, as far as prefixes reach
    ``teacher.safetensors`` ``ranked_ids`` [N, m] int32 and ``logprobs`` [N, V] or [N, m + 1]
    ======================  ================================================================================

    Args:
        folder: Where to.
        probe: What to write.

    Returns:
        The probe with its ``digest``, which is that of the manifest.

    Raises:
        DiskFullError: If there is no room.
    """
    with whole_folder(folder) as unfinished:
        columns = {each.name: getattr(probe.positions, each.name).numpy() for each in fields(Positions)}
        columns |= {_INITIAL + name: getattr(probe.initial, name).numpy() for name in MEASURES}
        pq.write_table(pa.table(columns), unfinished / POSITIONS)
        ids = pa.array(map(list, probe.sequences), type=pa.list_(pa.int32()))
        pq.write_table(pa.table({"token_ids": ids}), unfinished / SEQUENCES)
        laws = {"ranked_ids": probe.teacher.ranked_ids.int(), "logprobs": probe.teacher.logprobs}
        save_file({name: value.contiguous() for name, value in laws.items()}, unfinished / TEACHER)
        shutil.copymode(unfinished / POSITIONS, unfinished / TEACHER)  # the writer of safetensors lets nobody else read
        manifest = {
            "kind": _KIND,
            "schema_version": SCHEMA_VERSION,
            "num_positions": len(probe),
            "top_k": probe.top_k,
            "vocab_size": probe.vocab_size,
            "vocabulary": probe.vocabulary,
            "whole_teacher_laws": probe.teacher.whole,
            "facts": dict(probe.facts),
            "files": {name: _checksum(unfinished / name) for name in (POSITIONS, SEQUENCES, TEACHER)},
        }
        text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
        (unfinished / MANIFEST).write_text(text, encoding="utf-8")
    return replace(probe, digest=_digest(text.encode()))


def read_probe(folder: Path) -> Probe:
    """Read a probe back.

    Raises:
        ProbeFileError: If it is missing, damaged, cut short or of another version; one sentence says which file.
    """
    raw, manifest = _manifest(folder)
    for name, checksum in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise ProbeFileError(f"the probe {folder} lacks {name}; copy the whole folder, or build it again")
        if path.stat().st_size == 0:
            raise ProbeFileError(f"{path} is empty; copy the whole probe again, or build it again")
        if _checksum(path) != checksum:
            raise ProbeFileError(
                f"{path} is damaged or cut short, its checksum is not that of the manifest; copy the whole probe "
                "again, or build it again"
            )
    try:
        positions = pq.read_table(folder / POSITIONS)
        columns = {name: torch.tensor(positions[name].to_numpy()) for name in positions.column_names}
        sequences = pq.read_table(folder / SEQUENCES)["token_ids"].to_pylist()
        laws = load_file(folder / TEACHER)
    except (pa.ArrowException, SafetensorError, OSError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ProbeFileError(f"the probe {folder} cannot be read ({reason}); build it again") from error
    return Probe(
        sequences=tuple(map(tuple, sequences)),
        positions=Positions(**{each.name: columns[each.name] for each in fields(Positions)}),
        teacher=TeacherLaws(laws["ranked_ids"].long(), laws["logprobs"], manifest["whole_teacher_laws"]),
        initial=Measures(**{name: columns[_INITIAL + name] for name in MEASURES}),
        top_k=manifest["top_k"],
        vocab_size=manifest["vocab_size"],
        vocabulary=manifest["vocabulary"],
        facts=manifest["facts"],
        digest=_digest(raw),
    )


def _manifest(folder: Path) -> tuple[bytes, dict[str, Any]]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ProbeFileError(f"there is no probe in {folder} (no {MANIFEST}); build one with saki probe build")
    raw = path.read_bytes()
    if not raw.strip():
        raise ProbeFileError(f"{path} is empty; copy the whole probe again, or build it again")
    try:
        manifest = json.loads(raw)
    except ValueError as error:
        raise ProbeFileError(f"{path} is damaged or cut short: it is not JSON; build the probe again") from error
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise ProbeFileError(f"{path} is not the manifest of a probe; give a folder that saki probe build wrote")
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise ProbeFileError(
            f"the probe {folder} has schema version {manifest['schema_version']}, this saki reads {SCHEMA_VERSION}; "
            "build it again"
        )
    return raw, manifest


def _checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def _digest(manifest: bytes) -> str:
    return hashlib.blake2b(manifest, digest_size=16).hexdigest()
