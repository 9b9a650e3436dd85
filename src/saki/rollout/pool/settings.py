"""Settings of a pool of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from saki.types import check_number


@dataclass(frozen=True)
class PoolSettings:
    """How many replicas, what each gets, how work is cut, and what a failure may cost.

    Attributes:
        replicas: Resident replicas, each with a student and a teacher.
        unit_rows: Most rows of a work unit. Results are the same to the bit for one value of it and one kind of
            device, whatever the number of replicas.
        batch_rows: Most rows that roll out together in a replica; None for ``unit_rows``. With half of them a row that
            ends makes room for another of its unit, so that a replica's batch stays full.
        cpus: CPU cores that a replica is charged for.
        gpus: GPUs of a replica; 0 for a CPU, a fraction to share one.
        resources: Further resources of the Ray cluster that a replica needs, to place it.
        threads: Threads of a replica on a CPU.
        devices: GPUs of this machine that replicas may use, such as ``(4, 5, 6, 7)``; None for all that are visible.
            Not for an ``address``.
        address: A Ray cluster to join; None starts Ray on this machine alone, on the loopback.
        bucket_bytes: Bytes of weights under way at once in a sync.
        spool: Folder for the weights of the last sync, from which a replaced replica gets them; None for a temporary
            one. They take the size of the student in the engine's dtype, twice during a sync.
        max_failures: Replicas that may fail over the pool's life before it gives up.
        stall_timeout: Seconds without a forward, a bucket or an answer after which a busy replica counts as hung.
        unit_timeout: Seconds that one request to a replica may take in all, however lively it is; None for no limit.
        start_timeout: Seconds in which a replica must have loaded its models.
    """

    replicas: int = 1
    unit_rows: int = 64
    batch_rows: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    threads: int = 1
    devices: tuple[int, ...] | None = None
    address: str | None = None
    bucket_bytes: int = 64 * 2**20
    spool: str | None = None
    max_failures: int = 8
    stall_timeout: float = 300.0
    unit_timeout: float | None = None
    start_timeout: float = 1800.0

    def __post_init__(self) -> None:
        """Refuse what no pool can have.

        Raises:
            ValueError: One sentence.
        """
        for name, least in (
            ("replicas", 1),
            ("unit_rows", 1),
            ("threads", 1),
            ("max_failures", 0),
            ("bucket_bytes", 8),
        ):
            check_number(name, getattr(self, name), least=least, whole=True)
        if self.batch_rows is not None:
            check_number("batch_rows", self.batch_rows, least=1, whole=True)
        for name in ("cpus", "gpus"):
            check_number(name, getattr(self, name), least=0)
        for name in ("stall_timeout", "start_timeout"):
            check_number(name, getattr(self, name), positive=True)
        if self.unit_timeout is not None:
            check_number("unit_timeout", self.unit_timeout, positive=True)
        for name, amount in self.resources.items():
            check_number(f"resources[{name!r}]", amount, positive=True)
        if self.gpus > 1:
            raise ValueError(f"gpus must be at most 1, got {self.gpus}; a replica runs on one device")
        if self.devices is not None and self.address is not None:
            raise ValueError("devices names GPUs of this machine, but address joins a cluster; give one of the two")
        if self.devices is not None and not self.gpus:
            raise ValueError("devices names GPUs, but gpus, the GPUs of a replica, is 0; set gpus to 1, or a fraction")
        if self.devices is not None and self.replicas * self.gpus > len(self.devices):
            raise ValueError(
                f"{self.replicas} replicas with {self.gpus:g} GPUs each do not fit {len(self.devices)} devices; "
                "lower replicas or gpus"
            )
