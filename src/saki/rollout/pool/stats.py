"""What a pool has done so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from saki.rollout.protocol import EngineStats


@dataclass
class PoolStats(EngineStats):
    """Counters of a pool. Work that was lost with a replica is not counted.

    ``seconds`` are those of the replicas, divided by their number: phases that run at the same time then add up to the
    wall seconds at most.

    Attributes:
        units: Units rolled out.
        failures: Replicas that failed and were replaced.
        causes: What was wrong with each.
        resent_buckets: Buckets that arrived damaged and were sent again.
        sync_bytes: Bytes of weights sent, to each replica once.
        sync_seconds: Wall seconds of syncs.
    """

    units: int = 0
    failures: int = 0
    causes: list[str] = field(default_factory=list)
    resent_buckets: int = 0
    sync_bytes: int = 0
    sync_seconds: float = 0.0

    def add(self, stats: EngineStats) -> None:
        """Add what a replica has done."""
        for entry in fields(EngineStats):
            if entry.name != "seconds":
                setattr(self, entry.name, getattr(self, entry.name) + getattr(stats, entry.name))
        for name, value in stats.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    def told(self, replicas: int, failures: int, causes: Sequence[str]) -> PoolStats:
        """A copy for the caller, its seconds divided by the number of replicas."""
        seconds = {name: value / replicas for name, value in self.seconds.items()}
        return replace(self, failures=failures, causes=list(causes), seconds=seconds)
