"""What commands share on the screen and in folders."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import saki
from saki.rollout.protocol import ProgressCallback


@contextmanager
def progress_bar(description: str, unit: str) -> Iterator[ProgressCallback]:
    """A bar with rate and time left; its callback takes (finished, total)."""
    with tqdm(desc=description, unit=f" {unit}", dynamic_ncols=True) as bar:

        def update(finished: int, total: int) -> None:
            bar.total = total
            bar.update(finished - bar.n)

        yield update


def print_json(values: dict[str, Any]) -> None:
    """The last line under ``--json``."""
    print(json.dumps(values), flush=True)


def fresh_folder(path: str, owner: str) -> Path:
    """A folder that a command may fill.

    Raises:
        ValueError: If it holds something already, or cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error
    if taken:
        raise ValueError(f"{folder} is not empty; give {owner} another --out or remove it first")
    return folder


def pick_device(name: str) -> torch.device:
    """``auto`` takes a CUDA device where there is one.

    Raises:
        ValueError: If the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} is not available here; use cpu, cuda or auto") from error
    return device


def pick_dtype(name: str) -> torch.dtype:
    """A dtype by name.

    Raises:
        ValueError: If saki does not run in it.
    """
    known = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ValueError(f"dtype must be one of {', '.join(known)}, got {name!r}")
    return known[name]


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
