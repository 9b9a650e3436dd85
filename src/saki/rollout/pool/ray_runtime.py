"""The Ray runtime below a pool: on the loopback and with a token, or a cluster that is there already."""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saki.rollout.pool.errors import PoolError
from saki.rollout.pool.settings import PoolSettings

logger = logging.getLogger(__name__)

AUTH_MODE, AUTH_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_LONGEST_FOLDER = 36
"""Characters of Ray's folder: names of sockets below it are some 65 longer, and 107 is the kernel's limit."""


class RayRuntime:
    """Ray, connected.

    A runtime that is up already is used as it is and left running. Otherwise, without an address, Ray is started on
    this machine alone: every server listens on the loopback only, its files lie in a folder of this user, the
    dashboard is off, and calls need a token that this process has made up. With an address that cluster is joined, with
    the token of ``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH`` or ``~/.ray/auth_token``.

    Args:
        settings: Address, devices and resources.

    Raises:
        ValueError: If Ray is not installed, or a cluster is to be joined and it is not said how it authenticates.
        PoolError: If Ray does not start, or would listen on other interfaces.
    """

    def __init__(self, settings: PoolSettings) -> None:
        self._folder: str | None = None
        self._owned = False
        given = "ray" in sys.modules
        if settings.address is None and not _is_initialized():
            _prepare_environment(given)
        elif settings.address is not None and not _is_initialized():
            _check_authentication(settings.address)
        try:
            import ray
        except ImportError:
            raise ValueError("a pool of replicas needs ray; install it with: pip install 'saki[ray]'") from None
        self.ray: Any = ray
        if ray.is_initialized():
            self._look_for_room(settings)
            return
        self._owned = True
        try:
            with _present_signals():
                if settings.address is None:
                    self._start(settings)
                else:
                    ray.init(address=settings.address, log_to_driver=False, logging_level=logging.WARNING)
        except PoolError:
            raise
        except Exception as error:
            self.close()
            where = "start on this machine" if settings.address is None else f"join {settings.address}"
            raise PoolError(f"ray did not {where}: {error}") from error
        self._look_for_room(settings)

    def _look_for_room(self, settings: PoolSettings) -> None:
        """Compare what the replicas ask for with what there is: Ray would let them wait without a word.

        Raises:
            ValueError: If this machine alone can never hold them. A cluster may grow, so there it is a warning.
        """
        there = self.ray.cluster_resources()
        for name, amount in {"CPU": settings.cpus, "GPU": settings.gpus, **settings.resources}.items():
            if amount <= 0 or _places(name, there.get(name, 0.0), amount) >= settings.replicas:
                continue
            lacking = (
                f"{settings.replicas} replicas with {amount:g} {name} each do not fit: there is {there.get(name, 0):g} "
                f"{name}"
            )
            if self._owned and settings.address is None:
                self.close()
                raise ValueError(f"{lacking}; lower pool_replicas or what a replica is charged for")
            logger.warning("%s in the cluster now; replicas wait until there is room", lacking)

    def _start(self, settings: PoolSettings) -> None:
        # Sockets lie in it, so it is for this user alone. Ray opens its own folder to everybody: one more level.
        folder = tempfile.mkdtemp(prefix="saki-ray-")
        if len(folder) > _LONGEST_FOLDER:
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="saki-ray-", dir="/tmp")
        self._folder = folder
        with _visible_devices(settings.devices):
            self.ray.init(
                # The pool is what this runtime is for, so a replica never waits for another's cores.
                num_cpus=max(os.cpu_count() or 1, math.ceil(settings.replicas * settings.cpus)),
                resources={name: amount * settings.replicas for name, amount in settings.resources.items()} or None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=os.path.join(folder, "ray"),
            )
        address = self.ray.util.get_node_ip_address()
        if not ipaddress.ip_address(address).is_loopback:
            self.close()
            raise PoolError(
                f"ray would listen on {address} instead of the loopback, as it was imported before the pool was made; "
                f"set {_LOOPBACK_SWITCH}=0 before that, or start ray yourself"
            )

    def close(self) -> None:
        """Disconnect from a runtime that this object has started or joined; again is harmless."""
        if self._owned:
            self._owned = False
            with _present_signals():
                self.ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _places(name: str, there: float, amount: float) -> int:
    """How many replicas find room; a share of a GPU does not reach over to the next."""
    if name == "GPU" and amount < 1:
        return int(there) * int(1 / amount + 1e-6)
    return int(there / amount + 1e-6)


def _is_initialized() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _prepare_environment(imported: bool) -> None:
    """What Ray reads when it is imported: the loopback alone, and a token for every call."""
    os.environ.setdefault(_LOOPBACK_SWITCH, "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray gives way to everything else on its machine by 15 steps of niceness; a replica is the work itself.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if not imported:
        os.environ.setdefault(AUTH_MODE, "token")
    elif (constants := sys.modules.get("ray._private.ray_constants")) is not None:
        # Read once, at Ray's import; the token is asked for by Ray itself in that case. Whether it worked is looked at.
        setattr(constants, "ENABLE_RAY_CLUSTER", os.environ[_LOOPBACK_SWITCH] != "0")  # noqa: B010
    if not _has_token():
        os.environ[AUTH_TOKEN] = secrets.token_hex(32)


def _has_token() -> bool:
    named = os.environ.get(AUTH_TOKEN) or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or Path("~/.ray/auth_token").expanduser().is_file()


def _check_authentication(address: str) -> None:
    """A cluster is joined with a token, or without one where that has been said."""
    if AUTH_MODE in os.environ:
        return
    if not _has_token():
        raise ValueError(
            f"there is no token for the Ray cluster {address}; set {AUTH_MODE}=token and {AUTH_TOKEN} to the cluster's "
            f"token, or {AUTH_MODE}=disabled for a cluster that has none on a network that is yours alone"
        )
    os.environ[AUTH_MODE] = "token"


@contextmanager
def _visible_devices(devices: tuple[int, ...] | None) -> Iterator[None]:
    """Ray hands out the GPUs that are visible when it starts; this process keeps its own."""
    if devices is None:
        yield
        return
    name, before = "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ[name] = ",".join(map(str, devices))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _present_signals() -> Iterator[None]:
    """Ray takes SIGTERM over when it starts; whoever handled it before goes on to do so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
