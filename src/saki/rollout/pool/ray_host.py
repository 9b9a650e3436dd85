"""Replicas as Ray actors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from saki.rollout.pool.errors import ReplicaLostError
from saki.rollout.pool.fleet import Handle
from saki.rollout.pool.ray_runtime import RayRuntime
from saki.rollout.pool.replica import Replica, ReplicaModels
from saki.rollout.pool.settings import PoolSettings

_WATCH = "watch"


class RayHost:
    """Makes replicas as actors of a Ray runtime.

    Args:
        models: What every replica loads.
        settings: What an actor is charged for.
        runtime: The runtime; the host closes it.
    """

    def __init__(self, models: ReplicaModels, settings: PoolSettings, runtime: RayRuntime) -> None:
        self._models, self._settings, self._runtime = models, settings, runtime

    def hire(self, name: str) -> RayHandle:
        """Start an actor; Ray places it where its resources are free."""
        ray, settings = self._runtime.ray, self._settings
        # A second thread answers the pulse while the first one works.
        actor_class = ray.remote(concurrency_groups={_WATCH: 1})(Replica).options(
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            resources=dict(settings.resources) or None,
            # A replica that is started again by Ray would come without weights; the pool replaces it itself.
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": str(settings.threads)}},
        )
        return RayHandle(ray, actor_class.remote(self._models), name)

    def wait(self, handles: Sequence[Handle], timeout: float) -> list[Handle]:
        """Those whose calls are done."""
        by_ref: dict[Any, Handle] = {handle.ref: handle for handle in handles if isinstance(handle, RayHandle)}
        ready, waiting = self._runtime.ray.wait(list(by_ref), num_returns=1, timeout=timeout)
        if ready and waiting:
            more, _ = self._runtime.ray.wait(waiting, num_returns=len(waiting), timeout=0)
            ready = [*ready, *more]
        return [by_ref[ref] for ref in ready]

    def share(self, value: Any) -> Any:
        """A reference into Ray's object store, which a machine holds once for all of its replicas."""
        return self._runtime.ray.put(value)

    def close(self) -> None:
        """End the Ray runtime, if the pool has started it."""
        self._runtime.close()


class RayHandle:
    """One actor.

    Args:
        ray: The module.
        actor: The actor.
        name: For messages.
    """

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self._actor, self._name = ray, actor, name
        self._pulse_ref: Any = None
        self._pulse: int | None = None
        self._place: tuple[str, int] | None = None
        self.ref: Any = None

    def start(self, call: str, *arguments: Any) -> None:
        """Begin a call."""
        self.ref = getattr(self._actor, call).remote(*arguments)

    def result(self) -> Any:
        """The answer of the call that is done."""
        exceptions = self._ray.exceptions
        try:
            answer = self._ray.get(self.ref)
        except exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except exceptions.RayError as error:
            words = str(error).strip().splitlines()
            raise ReplicaLostError(f"its process is gone ({words[0] if words else type(error).__name__})") from None
        if hasattr(answer, "pid"):
            self._place = answer.host, answer.pid
        return answer

    def pulse(self) -> int | None:
        """The newest known pulse; asks for another as soon as the last one has come."""
        if self._pulse_ref is not None:
            ready, _ = self._ray.wait([self._pulse_ref], timeout=0)
            if not ready:
                return self._pulse
            try:
                self._pulse = self._ray.get(self._pulse_ref)
            except self._ray.exceptions.RayError:
                return self._pulse  # the call under way tells what happened
        self._pulse_ref = self._actor.pulse.options(concurrency_group=_WATCH).remote()
        return self._pulse

    def kill(self, *, hung: bool = False) -> None:
        """End the actor. A stopped process hears nothing, so one on this machine is ended by the kernel then."""
        if not self._ray.is_initialized():
            return  # Ray has gone, and its actors with it
        self._ray.kill(self._actor, no_restart=True)
        if hung and self._place is not None and self._place[0] == socket.gethostname():
            alive = self._process_name()
            if alive is not None and "Replica" in alive:
                os.kill(self._place[1], 9)
        self._place = None

    def _process_name(self) -> str | None:
        """What the process with the replica's id is called now: after its end another may have its id."""
        assert self._place is not None
        try:
            with open(f"/proc/{self._place[1]}/cmdline", "rb") as stream:
                return stream.read().decode(errors="replace")
        except OSError:
            return None
