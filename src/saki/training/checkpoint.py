"""Checkpoints that are complete or not there: staged, listed in a manifest, renamed."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saki.files import writing
from saki.files.atomic import flush
from saki.training.resume import OPTIMIZER_FIELDS

logger = logging.getLogger(__name__)

MANIFEST = "saki_state.json"
SCHEMA_VERSION = 1
STAGING = ".staging"
SUPERSEDED = "superseded-"
_NAME = re.compile(r"^checkpoint-(\d+)$")


LATER_FACTS = frozenset(
    {"teacher_weights", "base_weights", "adapter", "vllm_importance_sampling_correction", *OPTIMIZER_FIELDS}
)
"""Facts that checkpoints of earlier versions lack; where one is missing it is not compared."""

_OF_WHAT = {
    "prompts_crc32": "other prompts: the data set, the tokenizer or the chat template has changed, or the template "
    "writes the date",
    "teacher_weights": "another teacher, or the same in another dtype",
    "base_weights": "another base model under the adapter",
    "reference_checksum": "another initial student",
}
"""Facts that are no settings, in words."""


class CheckpointError(ValueError):
    """A checkpoint is incomplete, damaged or of another run."""


@contextmanager
def staged_checkpoint(root: Path, final: Path, writer: bool = True) -> Iterator[Path]:
    """An empty staging folder for the time of a save; it is gone afterwards, also when the save fails.

    Args:
        root: Folder of the checkpoints.
        final: The checkpoint, to be named when there is no room.
        writer: Whether this process makes and removes the folder.

    Raises:
        DiskFullError: If there is no room.
    """
    staging = root / STAGING
    if writer:
        clear_staging(root)
    try:
        with writing(final):
            if writer:
                staging.mkdir(parents=True)
            yield staging
    finally:
        if writer:
            shutil.rmtree(staging, ignore_errors=True)


def clear_staging(root: Path) -> None:
    """Remove what a killed save left."""
    if (root / STAGING).exists():
        shutil.rmtree(root / STAGING)


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """List every file of a finished checkpoint with its size and CRC-32, and the run's facts; then flush it all.

    Args:
        folder: The checkpoint, complete but for the manifest.
        facts: What a resume must agree with, JSON values.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            flush(path)
            files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "crc32": file_crc32(path)}
    content = {"schema_version": SCHEMA_VERSION, "facts": facts, "files": files}
    with (folder / MANIFEST).open("w") as stream:
        json.dump(content, stream, indent=2, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())


def publish(staged: Path, final: Path) -> None:
    """Move a finished checkpoint to its name in one rename; an older one of that name goes first."""
    if final.exists():
        remove_checkpoint(final)
    os.replace(staged, final)
    flush(final.parent)


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; a kill on the way leaves no half of it under its name."""
    doomed = folder.parent / STAGING / f"removed-{folder.name}"
    doomed.parent.mkdir(exist_ok=True)
    os.replace(folder, doomed)
    shutil.rmtree(doomed)


def rotate(root: Path, limit: int | None, keep: Collection[str]) -> None:
    """Remove the oldest checkpoints until ``limit`` are left.

    Args:
        root: Folder of the checkpoints.
        limit: How many stay; None or 0 for all.
        keep: Names that stay in any case: the newest and the best.
    """
    if not limit or limit < 0:
        return
    others = [path for path in list_checkpoints(root) if path.name not in keep]
    for path in reversed(others[max(limit - len(keep), 0) :]):
        remove_checkpoint(path)


def set_aside(root: Path, step: int) -> None:
    """Rename checkpoints beyond a step, newest first, so that no later resume takes up what was given up.

    They are the damaged, foreign or passed-over ones of a run that goes on from an earlier step.
    """
    for path in list_checkpoints(root):
        if (checkpoint_step(path) or 0) <= step:
            return
        other, count = root / f"{SUPERSEDED}{path.name}", 1
        while other.exists():
            count += 1
            other = root / f"{SUPERSEDED}{count}-{path.name}"
        os.replace(path, other)
        logger.warning("the run goes on from step %d, so %s is now %s", step, path.name, other)


def check_checkpoint(folder: Path, facts: dict[str, Any]) -> None:
    """Verify a checkpoint against its manifest and against the run that wants to resume.

    Raises:
        CheckpointError: One sentence: what is missing, damaged or different.
    """
    try:
        _check(folder, facts)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read ({error.strerror or error})") from error


def _check(folder: Path, facts: dict[str, Any]) -> None:
    manifest = folder / MANIFEST
    try:
        content = json.loads(manifest.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {MANIFEST}: it is not a finished checkpoint of saki") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{manifest} is not readable JSON ({error})") from error
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        version = content.get("schema_version") if isinstance(content, dict) else None
        raise CheckpointError(f"{manifest} has schema version {version}, this saki reads {SCHEMA_VERSION}")
    files, stored = content.get("files"), content.get("facts")
    if not isinstance(files, dict) or not isinstance(stored, dict) or not all(map(_is_entry, files.values())):
        raise CheckpointError(f"{manifest} is damaged: it lists no files and facts")
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder} lacks {name}")
        if path.stat().st_size != expected["bytes"]:
            raise CheckpointError(f"{path} holds {path.stat().st_size} bytes, its manifest says {expected['bytes']}")
        if file_crc32(path) != expected["crc32"]:
            raise CheckpointError(f"{path} is damaged: its CRC-32 differs from the manifest")
    for name, value in facts.items():
        if stored.get(name) == value or (name in LATER_FACTS and name not in stored):
            continue
        if name in _OF_WHAT:
            raise CheckpointError(
                f"{folder} was written with {_OF_WHAT[name]}; give the same to go on, or start a new run in another "
                "folder"
            )
        raise CheckpointError(
            f"{folder} was written with {name} = {stored.get(name)!r}, this run has {value!r}; give the same "
            f"{name} to go on, or start a new run in another folder"
        )


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and {"bytes", "crc32"} <= value.keys()


def checkpoint_step(folder: Path) -> int | None:
    """The N of a folder named checkpoint-N; None for another name."""
    match = _NAME.match(folder.name)
    return int(match[1]) if match else None


def list_checkpoints(root: Path) -> list[Path]:
    """Folders named checkpoint-N, newest first."""
    if not root.is_dir():
        return []
    found = [(step, path) for path in root.iterdir() if (step := checkpoint_step(path)) is not None and path.is_dir()]
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


def checkpoint_to_resume(root: Path, facts: dict[str, Any]) -> Path:
    """The newest checkpoint that is good; each newer one that is not is logged with its reason.

    Raises:
        CheckpointError: If there is none.
    """
    path, refused = last_good_checkpoint(root, facts)
    for reason in refused:
        logger.warning("skipping a checkpoint: %s", reason)
    if path is None and refused:
        raise CheckpointError(
            f"no checkpoint in {root} can be used, {len(refused)} were tried (the newest: {refused[0]}); resume with "
            "the settings they were written with, or start again in another folder"
        )
    if path is None:
        raise CheckpointError(f"there is no checkpoint in {root}; start without resuming")
    return path


def file_crc32(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            value = zlib.crc32(block, value)
    return value
