"""What the external loop measures of itself, and the condition under which it counts as a baseline."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from saki.rollout.protocol import EngineStats

HONEST_RATIO = 1.3
"""A request may take this many times what its own parts take; more would be slack that no external loop must have."""

PARTS = ("forward", "serialise", "transfer", "bridge")
"""The parts that an external loop cannot do without."""

WAVES_KEPT = 4096


@dataclass
class ExternalStats(EngineStats):
    """Counters of the external loop.

    Attributes:
        bytes_sent: Bytes from the coordinator to the servers.
        bytes_received: Bytes from the servers to the coordinator.
        requests: Requests answered.
        request_seconds: Wall seconds by part, over every request and wave. ``forward``: models, log-softmax and draws
            of proposals, measured inside the servers. ``serialise``: arrays and descriptors made, read and checked on
            both sides. ``transfer``: bytes handed to and taken from the kernel, waiting excluded. ``bridge``: the
            solver. ``coupling``: the rest of verification. ``rest``: everything else, such as the wake-up of the other
            process and the coordinator's bookkeeping.
        wave_ratios: Of the last waves (two requests, bridge, coupling and commit), wall seconds over the sum of
            :data:`PARTS`.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    requests: int = 0
    request_seconds: dict[str, float] = field(default_factory=dict)
    wave_ratios: tuple[float, ...] = ()

    def overhead_ratio(self) -> float:
        """Median over the last waves of wall seconds over forward + serialise + transfer + bridge.

        Raises:
            ValueError: If no wave was run.
        """
        if not self.wave_ratios:
            raise ValueError("no wave was measured; roll out with a positive trust_region_radius first")
        return statistics.median(self.wave_ratios)

    def check_honest(self, limit: float = HONEST_RATIO) -> None:
        """Refuse a loop that is slower than its parts explain: it would flatter whatever is compared with it.

        Raises:
            ValueError: If :meth:`overhead_ratio` exceeds ``limit``.
        """
        ratio = self.overhead_ratio()
        if ratio > limit:
            raise ValueError(
                f"a wave of the external loop takes {ratio:.2f} times its forward, serialise, transfer and bridge "
                f"time, expected at most {limit:g}; it is no baseline here, so free the machine and measure again"
            )


class Ledger:
    """Seconds by part, shared by the two connections and the work units of one loop."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*PARTS, "coupling", "rest"), 0.0)
        self.requests = 0
        self.wave_ratios: deque[float] = deque(maxlen=WAVES_KEPT)

    def add(self, part: str, seconds: float) -> None:
        """Charge seconds to a part."""
        self.seconds[part] += seconds

    def parts(self) -> float:
        """Seconds of :data:`PARTS` so far."""
        return sum(self.seconds[part] for part in PARTS)

    def accounted(self) -> float:
        """Seconds of everything but ``rest`` so far."""
        return self.parts() + self.seconds["coupling"]
