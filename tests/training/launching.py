"""Starting a few processes that train together: gloo on this machine, forked from a server that has imported all."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
import traceback
from pathlib import Path
from typing import Any

import torch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.training.rank_jobs"])


def run_ranks(size: int, job: str, folder: Path, *args: Any, seconds: float = 300) -> list[Any]:
    """Run ``tests.training.rank_jobs.<job>(folder, *args)`` on ranks that know each other.

    Returns:
        What each rank returned, in the order of ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    ranks = [
        _CONTEXT.Process(target=_run, args=(rank, size, port, job, folder, args), daemon=True) for rank in range(size)
    ]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + seconds
    while any(process.exitcode is None for process in ranks) and time.monotonic() < deadline:
        if any(process.exitcode for process in ranks):
            deadline = min(deadline, time.monotonic() + 5)  # the others may have more to say
        time.sleep(0.02)
    hanging = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
    for process in ranks:
        process.kill()
        process.join()
    said = "\n".join(path.read_text() for path in sorted(folder.glob("error-*.txt")))
    assert not hanging, f"ranks {hanging} did not end\n{said}"
    assert [process.exitcode for process in ranks] == [0] * size, said
    return [torch.load(folder / f"result-{rank}.pt", weights_only=False) for rank in range(size)]


def _run(rank: int, size: int, port: int, job: str, folder: Path, args: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    from tests.training import rank_jobs

    try:
        torch.save(getattr(rank_jobs, job)(folder, *args), folder / f"result-{rank}.pt")
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
    except BaseException:
        (folder / f"error-{rank}.txt").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        with contextlib.suppress(Exception):
            time.sleep(0.2)
        os._exit(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
