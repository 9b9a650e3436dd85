"""The processes of a run: what they tell each other beside gradients and weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Value = TypeVar("Value")


class PeerError(RuntimeError):
    """Another process of the run has failed, so this one stops as well."""


class Ranks:
    """The processes that take the steps of a run together; one alone needs no process group.

    Every rank must call :meth:`gather` and :meth:`together` the same number of times in the same order.

    Args:
        rank: This process.
        size: Number of processes.

    Attributes:
        waited: Wall seconds spent in gathering so far: nearly all of it is waiting for the slowest rank.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.waited = 0.0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that speaks and writes for all."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """What each rank has, in the order of ranks. Values may differ in kind and size.

        Args:
            value: Anything that can be pickled; it stays among the processes of this run.
        """
        if self.size == 1:
            return [value]
        begin = time.perf_counter()
        values: list[Value | None] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        self.waited += time.perf_counter() - begin
        return values  # type: ignore[return-value]  # every place is filled by now

    def scatter(self, values: list[Value] | None) -> Value:
        """Each rank's own value out of those that the first rank has.

        Args:
            values: On the first rank one a rank, to be pickled; None on the others.
        """
        if self.size == 1:
            assert values is not None
            return values[0]
        begin = time.perf_counter()
        own: list[Value | None] = [None]
        torch.distributed.scatter_object_list(own, values, src=0)
        self.waited += time.perf_counter() - begin
        return own[0]  # type: ignore[return-value]  # filled by now

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that all ranks leave by an error if one of them does: nobody waits for a rank that has gone.

        The block must not hold a collective that a failed rank would miss.

        Raises:
            PeerError: If the block went well here and failed on another rank.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        failures = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, failure in enumerate(failures):
            if failure is not None:
                raise PeerError(f"rank {rank} failed: {failure}")
