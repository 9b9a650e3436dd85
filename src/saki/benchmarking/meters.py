"""Wall time, processor time and peak memory of a piece of work, child processes included."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

_PROC = Path("/proc")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Reading:
    """What a piece of work cost.

    Attributes:
        wall: Wall seconds.
        cpu: Processor seconds of this process and its children.
        peak_bytes: Most memory above what was held when it began: of the device on a GPU, else resident memory of this
            process and its children. None where the system does not tell.
    """

    wall: float
    cpu: float
    peak_bytes: int | None


def measure(work: Callable[[], Result], device: torch.device) -> tuple[Result, Reading]:
    """Run a piece of work and read what it cost; the clock stops when the device has finished."""
    cuda = device.type == "cuda"
    children = _children() if not cuda else []
    processes = [os.getpid(), *children]
    held = _begin_peak(device, processes)
    cpu = _children_seconds()
    wait_for(device)
    own, begin = time.process_time(), time.perf_counter()
    result = work()
    wait_for(device)
    wall, own = time.perf_counter() - begin, time.process_time() - own
    cpu = own + _children_seconds() - cpu
    peak = _end_peak(device, processes)
    return result, Reading(wall, cpu, max(0, peak - held) if peak is not None and held is not None else None)


def wait_for(device: torch.device) -> None:
    """Return once a device has done what it was asked; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _children() -> list[int]:
    """Process ids of all descendants; empty where there is no /proc."""
    parents: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(_stat(folder)[1]), []).append(int(folder.name))
    found, open_ends = [], [os.getpid()]
    while open_ends:
        below = parents.get(open_ends.pop(), [])
        found += below
        open_ends += below
    return found


def _children_seconds() -> float:
    """Processor seconds of the descendants that run, and of those that have ended."""
    times = os.times()
    seconds = times.children_user + times.children_system
    ticks = os.sysconf("SC_CLK_TCK")
    for process in _children():
        with suppress(OSError, ValueError, IndexError):
            fields = _stat(_PROC / str(process))
            seconds += (int(fields[11]) + int(fields[12])) / ticks
    return seconds


def _stat(folder: Path) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before may hold spaces and brackets."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _begin_peak(device: torch.device, processes: list[int]) -> int | None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    _give_back_free_memory()
    try:
        for process in processes:
            (_PROC / str(process) / "clear_refs").write_text("5")  # the peak starts anew
    except OSError:
        return None
    return _status(processes, "VmRSS:")


def _give_back_free_memory() -> None:
    """What an earlier arm freed would else count as held, and hide what the next one takes."""
    with suppress(OSError, AttributeError):  # another C library keeps its pages
        ctypes.CDLL(None).malloc_trim(0)


def _end_peak(device: torch.device, processes: list[int]) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status(processes, "VmHWM:")


def _status(processes: list[int], key: str) -> int | None:
    """Sum over processes of a line of /proc/PID/status, bytes."""
    total = 0
    for process in processes:
        try:
            lines = (_PROC / str(process) / "status").read_text().splitlines()
        except OSError:
            return None
        total += next((1024 * int(line.split()[1]) for line in lines if line.startswith(key)), 0)
    return total
