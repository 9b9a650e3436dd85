"""The resident engine as benchmarks run it: forced lengths, and a split of the time that no device's queue blurs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from saki.benchmarking.meters import wait_for
from saki.benchmarking.workload import RowName
from saki.rollout import ResidentEngine, verifier
from saki.rollout.clock import PhaseClock
from saki.rollout.unit import WorkUnit


class ForcedLengthUnit(WorkUnit):
    """A work unit whose rows end at lengths of their own.

    Attributes:
        forced_lengths: Length of each row, at most the request's cap; a subclass fills it.
    """

    forced_lengths: ClassVar[Mapping[RowName, int]] = {}

    def _row_caps(self) -> list[int]:
        return [self.forced_lengths[row.prompt.key, row.sample_index] for row in self.rows]


class DeviceClock(PhaseClock):
    """A phase clock that can wait for the device at the end of each phase, so that work is charged where it was asked.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.waits = device, False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time spent inside to ``name``."""
        with super().phase(name):
            yield
            if self.waits:
                wait_for(self._device)


class MeasuredEngine(ResidentEngine):
    """A resident engine whose time can be split. It samples what :class:`ResidentEngine` samples."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._device_clock = DeviceClock(self._student.device)
        self._clock = self._device_clock

    @contextmanager
    def split(self) -> Iterator[dict[str, float]]:
        """Inside, phases wait for the device, and the bridge is told from the coupling.

        Yields:
            Filled at the end: wall seconds by phase of what ran inside. Timing costs a little itself; speed is measured
            without it.
        """
        before = dict(self._clock.seconds)
        parts: dict[str, float] = {}
        self._device_clock.waits = True
        try:
            with _timed_bridges(self._student.device) as solved:
                yield parts
        finally:
            self._device_clock.waits = False
        for name, seconds in self._clock.seconds.items():
            parts[name] = seconds - before.get(name, 0.0)
        parts["coupling"] = max(0.0, parts.get("bridge", 0.0) - solved[0])
        parts["bridge"] = solved[0]


@contextmanager
def _timed_bridges(device: torch.device) -> Iterator[list[float]]:
    """Wall seconds that the verifier spends on solving bridges, as the one entry of a list."""
    seconds = [0.0]
    original = verifier.LazyBridges

    @contextmanager
    def timed() -> Iterator[None]:
        wait_for(device)
        begin = time.perf_counter()
        yield
        wait_for(device)
        seconds[0] += time.perf_counter() - begin

    class TimedBridges(original):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with timed():
                super().__init__(*args, **kwargs)

        def require(self, positions: Tensor) -> None:
            with timed():
                super().require(positions)

    verifier.LazyBridges = TimedBridges  # type: ignore[misc]
    try:
        yield seconds
    finally:
        verifier.LazyBridges = original  # type: ignore[misc]


def forced_engine_type(lengths: Mapping[RowName, int]) -> type[MeasuredEngine]:
    """A :class:`MeasuredEngine` whose rows end at the given lengths."""

    class Unit(ForcedLengthUnit):
        forced_lengths = lengths

    class Engine(MeasuredEngine):
        unit_type = Unit

    return Engine
