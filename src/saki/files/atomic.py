"""Writing so that a kill or a full disk at any moment leaves whole files only."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = ".unfinished"
"""Ending of the hidden name under which a file or folder grows."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("No space left on device", *(f"os error {number}" for number in _FULL))
_NO_ROOM = 1 << 16  # bytes: less is free when a writer that does not say why has failed for want of room


class DiskFullError(OSError):
    """A device has no room for a file. Nothing that was written before is touched.

    Args:
        path: What was to be written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"the disk is full: {path} could not be written; all that was written before is whole, "
            "so make room and start again"
        )
        self.errno = errno.ENOSPC


def disk_is_full(error: BaseException, path: Path | None = None) -> bool:
    """Whether a write failed for want of room.

    Args:
        error: What the writer raised. Rust and C++ writers raise no OSError; the text or, for torch, the free
            space tells.
        path: What was written, still half there; None to go by the error alone.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if any(text in str(error) for text in _FULL_TEXTS):
        return True
    if path is None or not isinstance(error, RuntimeError):
        return False
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    return shutil.disk_usage(folder).free < _NO_ROOM


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name a full disk as such, whichever library met it.

    Raises:
        DiskFullError: If the block failed because there is no room.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, DiskFullError) or not disk_is_full(error, path):
            raise
        raise DiskFullError(path) from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A hidden name to write a file to; it takes its own name once it is complete and on the device.

    Args:
        path: The file; its folder is made where it is missing. An older one is replaced at the end.

    Raises:
        DiskFullError: If there is no room. After this and any other error the hidden file is gone.
    """
    path = path.absolute()
    unfinished = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield unfinished
            flush(unfinished)
            os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):  # where the folder is none, the first error says so
            unfinished.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all.

    Raises:
        DiskFullError: If there is no room.
    """
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    """Append to a text file; when that fails, the file is cut back to what it held.

    Args:
        path: The file; made where it is missing.
        text: What to add, usually one line.

    Raises:
        DiskFullError: If there is no room.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), path.open("ab", buffering=0) as stream:
        before = stream.tell()
        try:
            rest = memoryview(text.encode())
            while rest:
                rest = rest[stream.write(rest) :]
            os.fsync(stream.fileno())
        except BaseException:
            stream.truncate(before)
            raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A hidden folder to fill; it takes its own name once it is complete.

    Where the folder exists already, the new files move into it one by one at the end, each whole, and files of
    other names stay.

    Args:
        path: The folder.

    Raises:
        DiskFullError: If there is no room. After this and any other error the hidden folder is gone.
    """
    path = path.absolute()
    exists = path.exists()
    # A folder that is there may be a mount point: only inside it a rename is sure to stay on one device.
    staged = path / UNFINISHED if exists else path.with_name(f".{path.name}{UNFINISHED}")
    if staged.exists():
        shutil.rmtree(staged)
    try:
        with writing(path):
            staged.mkdir(parents=True)
            yield staged
            files = sorted(each for each in staged.rglob("*") if each.is_file())
            for each in files:
                flush(each)
            if exists:
                for each in files:
                    target = path / each.relative_to(staged)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(each, target)
            else:
                os.replace(staged, path)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the device: a rename must not get there before them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
