"""Replicas in this process, on a clock of their own, that fail when they are told to."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from saki.rollout import ServedModel
from saki.rollout.pool import EnginePool, PoolSettings, Replica, ReplicaLostError, ReplicaModels
from saki.rollout.pool.buckets import Bucket
from tests.rollout.contract import STOPS, STUDENT, TEACHER


class Clock:
    """Moves when somebody waits in vain."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class InProcessHandle:
    """Carries a call out when it is waited for."""

    def __init__(self, host, number, name):
        self.host, self.number, self.name = host, number, name
        self.replica = Replica(host.models)
        self.calls = Counter()
        self.fault = None
        self.killed = False

    def start(self, call, *arguments):
        assert not self.killed
        self.calls[call] += 1
        self.host.log.append((self.number, call))
        self.fault = self.host.faults.pop((self.number, call, self.calls[call]), None)
        if self.fault == "flip":
            arguments = (flipped(arguments[0]),)
        self.call, self.arguments = call, arguments

    def result(self):
        if self.fault == "die":
            raise ReplicaLostError("its process is gone")
        if isinstance(self.fault, Exception):
            raise self.fault
        answer = getattr(self.replica, self.call)(*self.arguments)
        return self.host.edit(self.number, self.call, answer) if self.host.edit else answer

    def pulse(self):
        if self.fault == "slow":
            self.host.beats += 1
            return self.host.beats
        return self.replica.pulse()

    def kill(self, *, hung=False):
        self.killed = True


class InProcessHost:
    """Answers in the order in which calls began; ``hang`` never does, ``slow`` shows life and does in the end."""

    def __init__(self, models, faults=(), pick=0, edit=None):
        self.models, self.faults, self.pick, self.edit = models, dict(faults), pick, edit
        self.clock, self.log, self.hired, self.beats, self.closed = Clock(), [], [], 0, False

    def hire(self, name):
        self.hired.append(InProcessHandle(self, len(self.hired) + 1, name))
        return self.hired[-1]

    def wait(self, handles, timeout):
        able = [handle for handle in handles if handle.fault not in ("hang", "slow")]
        if able:
            return [able[self.pick % len(able)]]
        self.clock.now += timeout
        for handle in handles:
            if handle.fault == "slow" and self.beats > 20:
                handle.fault = None
        return []

    def share(self, value):
        return value

    def close(self):
        self.closed = True


def flipped(bucket: Bucket) -> Bucket:
    """The bucket with one bit changed."""
    data = np.copy(bucket.data)
    data[data.size // 2] ^= 4
    return replace(bucket, data=data)


def models(settings, student=STUDENT, teacher=TEACHER, **options):
    def served(arguments):
        return ServedModel(factory="tests.rollout.served:tiny_decoder", arguments=arguments)

    return ReplicaModels(
        student=served(student),
        teacher=served(teacher) if teacher else None,
        stop_token_ids=STOPS,
        batch_rows=settings.batch_rows or settings.unit_rows,
        threads=1,
        options=options,
    )


def in_process_pool(faults=(), pick=0, edit=None, teacher=TEACHER, **settings):
    """A pool over replicas in this process; returns it and its host."""
    made = PoolSettings(**{"replicas": 2, "unit_rows": 4, "bucket_bytes": 4096} | settings)
    host = InProcessHost(models(made, teacher=teacher), faults, pick, edit)
    return EnginePool(host, made, host.clock), host
