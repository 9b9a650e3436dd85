"""Which engine rolls out, and the settings of a pool of replicas."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from saki.rollout.pool.settings import PoolSettings


@dataclass
class PoolOptions:
    """Fields that choose and size the rollout engine; see :class:`saki.rollout.pool.PoolSettings`."""

    engine: str = field(
        default="resident",
        metadata={"help": "resident: an engine in each process; pool: replicas as Ray actors (needs saki[ray])."},
    )
    pool_replicas: int = field(default=1, metadata={"help": "Replicas of the pool, each with student and teacher."})
    pool_unit_rows: int | None = field(
        default=None, metadata={"help": "Completions of a work unit of the pool; by default 2 x rollout_batch_rows."}
    )
    pool_gpus_per_replica: float | None = field(
        default=None,
        metadata={"help": "GPUs a replica; a fraction shares one. By default 1 where the run has a GPU, else 0."},
    )
    pool_devices: str | None = field(
        default=None,
        metadata={"help": "GPUs of this machine for the replicas, such as 4,5,6,7; by default all that are visible."},
    )
    pool_cpus_per_replica: float = field(default=1.0, metadata={"help": "CPU cores that a replica is charged for."})
    pool_threads: int = field(default=1, metadata={"help": "Threads of a replica on a CPU."})
    pool_address: str | None = field(
        default=None, metadata={"help": "Ray cluster to join, such as auto or host:6379; by default Ray starts here."}
    )
    pool_resources: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'Resources of the Ray cluster that a replica needs (JSON), as {"engine": 1}.'}
    )
    pool_bucket_mb: int = field(default=64, metadata={"help": "Weights under way at once in a sync (MiB)."})
    pool_spool: str | None = field(
        default=None, metadata={"help": "Folder for the last synced weights; by default a temporary one."}
    )
    pool_max_failures: int = field(default=8, metadata={"help": "Replicas that may fail before the run stops."})
    pool_stall_timeout: float = field(
        default=300.0, metadata={"help": "Seconds without a forward after which a busy replica counts as hung."}
    )
    pool_unit_timeout: float | None = field(
        default=None, metadata={"help": "Seconds that one request to a replica may take; null for no limit."}
    )
    pool_start_timeout: float = field(
        default=1800.0, metadata={"help": "Seconds in which a replica must have loaded its models."}
    )

    def pool_settings(self, *, batch_rows: int, on_gpu: bool) -> PoolSettings:
        """The pool's settings.

        Args:
            batch_rows: Rows that roll out together in an engine.
            on_gpu: Whether replicas get a GPU where nothing is said.

        Raises:
            ValueError: One sentence.
        """
        # Twice as many as run at once: a row that ends makes room for another, and a replica's batch stays full.
        unit_rows = 2 * batch_rows if self.pool_unit_rows is None else self.pool_unit_rows
        gpus = self.pool_gpus_per_replica
        return PoolSettings(
            replicas=self.pool_replicas,
            unit_rows=unit_rows,
            batch_rows=min(batch_rows, unit_rows),
            cpus=self.pool_cpus_per_replica,
            gpus=(1.0 if on_gpu or self.pool_devices else 0.0) if gpus is None else gpus,
            resources=_amounts(self.pool_resources),
            threads=self.pool_threads,
            devices=_device_numbers(self.pool_devices),
            address=self.pool_address,
            bucket_bytes=self.pool_bucket_mb * 2**20,
            spool=self.pool_spool,
            max_failures=self.pool_max_failures,
            stall_timeout=self.pool_stall_timeout,
            unit_timeout=self.pool_unit_timeout,
            start_timeout=self.pool_start_timeout,
        )

    def check_engine(self, batch_rows: int) -> None:
        """Refuse what makes no engine.

        Raises:
            ValueError: One sentence.
        """
        if self.engine not in ("resident", "pool"):
            raise ValueError(f"engine must be resident or pool, got {self.engine!r}")
        if self.engine == "pool":
            if find_spec("ray") is None:
                raise ValueError("engine is pool, which needs ray; install it with: pip install 'saki[ray]'")
            self.pool_settings(batch_rows=batch_rows, on_gpu=False)
            return
        given = [
            entry.name
            for entry in PoolOptions.__dataclass_fields__.values()
            if entry.name != "engine" and getattr(self, entry.name) != entry.default
        ]
        if given:
            raise ValueError(f"{given[0]} is set, but engine is resident; set engine to pool, or leave {given[0]} out")


def _device_numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = [word.strip() for word in str(text).split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise ValueError(f"pool_devices must be distinct numbers of GPUs separated by commas, got {text!r}")
    return tuple(map(int, words))


def _amounts(value: Any) -> dict[str, float]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"pool_resources is not valid JSON: {error}") from error
    if not isinstance(value, dict | None):
        raise ValueError(f"pool_resources must be a JSON object, got {value!r}")
    return dict(value or {})
