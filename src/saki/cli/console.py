"""What commands share on the screen and in folders."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import saki
from saki.config.commands import check_device, check_dtype
from saki.rollout.protocol import ProgressCallback

_PAUSE_IN_FILES = 10.0  # seconds


@contextmanager
def progress_bar(description: str, unit: str) -> Iterator[ProgressCallback]:
    """A bar with rate and time left; its callback takes (finished, total). In a file it comes every ten seconds."""
    pause = 0.1 if sys.stderr.isatty() else _PAUSE_IN_FILES
    with tqdm(desc=description, unit=f" {unit}", dynamic_ncols=True, mininterval=pause) as bar:

        def update(finished: int, total: int) -> None:
            bar.total = total
            bar.update(finished - bar.n)

        yield update


def subcommand(argv: Sequence[str], names: Collection[str], command: str) -> str:
    """The first word of a command line, which names a sub-command.

    Raises:
        ValueError: If it is none of them.
    """
    if argv and argv[0] in names:
        return argv[0]
    got = f"got {argv[0]!r}" if argv else "got nothing"
    *others, last = names
    raise ValueError(f"{command} takes {', '.join(others)} or {last}, {got}; {command} --help shows what each does")


def print_json(values: dict[str, Any]) -> None:
    """The last line under ``--json``."""
    print(json.dumps(values), flush=True)


def fresh_folder(path: str, owner: str) -> Path:
    """A folder that a command may fill. It is not made yet: a command that fails before it writes leaves nothing.

    Raises:
        ValueError: If it holds something already, or cannot be made or written.
    """
    folder = Path(path)
    if holdings(folder):
        raise ValueError(f"{folder} is not empty; give {owner} another --out or remove it first")
    return folder


def holdings(folder: Path) -> list[str]:
    """What lies in a folder that a command wants to write to; whether it can be written is tried without a trace.

    A folder that is not there is tried under another name beside it: ranks of a launch ask at the same time, and none
    may see what another makes and takes away.

    Raises:
        ValueError: If it is a file, or cannot be made or written.
    """
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        if there == folder:
            with tempfile.TemporaryFile(dir=folder):
                return sorted(path.name for path in folder.iterdir())
        with tempfile.TemporaryDirectory(dir=there) as trial:
            (Path(trial) / folder.relative_to(there)).mkdir(parents=True)
    except NotADirectoryError:
        raise ValueError(f"cannot write to {folder}: {there} is a file; give another folder with --out") from None
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}; give another folder with --out") from error
    return []


def page_target(page: Path) -> Path:
    """A page that a command wants to write; whether it can be is tried without a trace.

    Raises:
        ValueError: If a folder or device has its name, or if its folder cannot be made or written.
    """
    holdings(page.parent)
    if page.exists() and not page.is_file():
        what = "a folder" if page.is_dir() else "no plain file"
        raise ValueError(f"cannot write to {page}: it is {what}; give the name of a page with --out")
    return page


def pick_device(name: str) -> torch.device:
    """``auto`` takes a CUDA device where there is one.

    Raises:
        ValueError: If the device is not there.
    """
    check_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def pick_dtype(name: str) -> torch.dtype:
    """A dtype by name.

    Raises:
        ValueError: If saki does not run in it.
    """
    check_dtype("dtype", name)
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def git_commit() -> str | None:
    """Short commit of the checkout that this package runs from, or None outside one."""
    here = Path(__file__).resolve().parent
    result = subprocess.run(
        ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or None if result.returncode == 0 else None


def run_facts() -> dict[str, Any]:
    """Commit and versions, for ``config.resolved.yaml``."""
    import transformers

    versions = {
        "saki": saki.__version__,
        "torch": str(torch.__version__),  # a str subclass that YAML does not write
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    return {"commit": git_commit(), "versions": versions}
