"""A disk so small that tests can fill it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs.

    Args:
        root: Where it is mounted.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.ballast = root, root / "ballast"

    def fill(self) -> None:
        """Leave no room."""
        with contextlib.suppress(OSError), self.ballast.open("ab", buffering=0) as stream:
            while stream.write(bytes(4096)):
                pass

    def free(self) -> None:
        """Make room again."""
        self.ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(root: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs for the time of the block; skip the test where that is not allowed."""
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(root)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command, so there is no small disk to fill")
    if mounted.returncode:
        pytest.skip(f"a small disk to fill cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(root)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)
