"""A pool of resident replicas behind one engine (Appendix K.4)."""

from saki.rollout.pool.errors import ClosedPoolError, PoolError, ReplicaLostError, TooManyFailuresError
from saki.rollout.pool.making import ray_pool
from saki.rollout.pool.pool import EnginePool
from saki.rollout.pool.replica import Replica, ReplicaModels
from saki.rollout.pool.settings import PoolSettings
from saki.rollout.pool.stats import PoolStats

__all__ = [
    "ClosedPoolError",
    "EnginePool",
    "PoolError",
    "PoolSettings",
    "PoolStats",
    "Replica",
    "ReplicaLostError",
    "ReplicaModels",
    "TooManyFailuresError",
    "ray_pool",
]
