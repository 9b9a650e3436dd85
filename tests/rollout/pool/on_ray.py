"""Pools whose replicas are Ray actors, and what their processes are at."""

from __future__ import annotations

import time

from saki.rollout import ServedModel
from saki.rollout.pool import PoolSettings, ray_pool
from tests.rollout.contract import STOPS, STUDENT, TEACHER


def pool_of(replicas, student=STUDENT, teacher=TEACHER, factory="tiny_decoder", **settings):
    """A pool of models that replicas make by themselves."""

    def served(arguments):
        return ServedModel(factory=f"tests.rollout.served:{factory}", arguments=arguments)

    values = {"cpus": 0.2, "unit_rows": 4, "bucket_bytes": 4096, "stall_timeout": 20.0, **settings}
    return ray_pool(served(student), served(teacher), STOPS, PoolSettings(replicas=replicas, **values))


def pid_of(pool, seat):
    """Process of the replica that sits there now."""
    return pool._fleet.seats[seat].handle._place[1]


def wait_for_forwards(handle, count):
    """Returns once a busy replica has made so many forwards more: its call is then in the middle."""
    first, deadline = None, time.monotonic() + 60
    while first is None or handle.pulse() < first + count:
        first = handle.pulse() if first is None else first
        assert time.monotonic() < deadline
        time.sleep(0.001)
    done, _ = handle._ray.wait([handle.ref], timeout=0)
    assert not done
