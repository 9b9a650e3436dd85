"""Checkpoints that are complete or not there: staged, listed in a manifest, renamed."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

MANIFEST = "saki_state.json"
SCHEMA_VERSION = 1
STAGING = ".staging"
_NAME = re.compile(r"^checkpoint-(\d+)$")


class CheckpointError(ValueError):
    """A checkpoint is incomplete, damaged or of another run."""


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """List every file of a finished checkpoint with its size and CRC-32, and the run's facts; then flush it.

    Args:
        folder: The checkpoint, complete but for the manifest.
        facts: What a resume must agree with, JSON values.
    """
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "crc32": file_crc32(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    content = {"schema_version": SCHEMA_VERSION, "facts": facts, "files": files}
    with (folder / MANIFEST).open("w") as stream:
        json.dump(content, stream, indent=2, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())


def publish(staged: Path, final: Path) -> None:
    """Move a finished checkpoint to its name in one rename; an older one of that name goes first."""
    if final.exists():
        shutil.rmtree(final)
    os.replace(staged, final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_checkpoint(folder: Path, facts: dict[str, Any]) -> None:
    """Verify a checkpoint against its manifest and against the run that wants to resume.

    Raises:
        CheckpointError: One sentence: what is missing, damaged or different.
    """
    manifest = folder / MANIFEST
    try:
        content = json.loads(manifest.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}: it is not a finished checkpoint of saki") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{manifest} is not readable JSON ({error})") from error
    if content.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(
            f"{manifest} has schema version {content.get('schema_version')}, this saki reads {SCHEMA_VERSION}"
        )
    for name, expected in content["files"].items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder} lacks {name}")
        if path.stat().st_size != expected["bytes"]:
            raise CheckpointError(f"{path} holds {path.stat().st_size} bytes, its manifest says {expected['bytes']}")
        if file_crc32(path) != expected["crc32"]:
            raise CheckpointError(f"{path} is damaged: its CRC-32 differs from the manifest")
    for name, value in facts.items():
        stored = content["facts"].get(name)
        if stored != value:
            raise CheckpointError(
                f"{folder} was written with {name} = {stored!r}, this run has {value!r}; give the same {name} to go "
                "on, or start a new run in another folder"
            )


def list_checkpoints(root: Path) -> list[Path]:
    """Folders named checkpoint-N, newest first."""
    if not root.is_dir():
        return []
    found = [(int(match[1]), path) for path in root.iterdir() if (match := _NAME.match(path.name)) and path.is_dir()]
    return [path for _, path in sorted(found, reverse=True)]


def last_good_checkpoint(root: Path, facts: dict[str, Any]) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that passes :func:`check_checkpoint`, and why newer ones did not."""
    refused = []
    for path in list_checkpoints(root):
        try:
            check_checkpoint(path, facts)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            return path, refused
    return None, refused


def file_crc32(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            value = zlib.crc32(block, value)
    return value
