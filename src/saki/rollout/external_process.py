"""Starts and ends the server processes of the external loop."""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from saki.rollout.external_errors import ServerStartError

LOOPBACK = "127.0.0.1"
_COMMAND = "from saki.rollout.external_server import main; main()"
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class ServedModel:
    """Where a server process takes its model from: a folder, or a factory that the process can import.

    Attributes:
        folder: Folder or hub name of a causal LM.
        vocab_size: Real ids; needed with ``folder``.
        dtype: Dtype of the weights with ``folder``: a name such as ``"float32"``, or ``"auto"``.
        device: Device with ``folder``.
        factory: ``"module:function"``, called in the process; returns a :class:`saki.rollout.Decoder`.
        arguments: Keyword arguments of the factory: numbers, strings, lists.
        num_threads: Threads of the process.
        revision: Revision on the hub with ``folder``.
        trust_remote_code: Whether code that the folder brings along may run.
    """

    folder: str | None = None
    vocab_size: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    factory: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    num_threads: int = 1
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if (self.folder is None) == (self.factory is None):
            raise ValueError("a served model needs a folder or a factory, and not both")
        if self.folder is not None and self.vocab_size is None:
            raise ValueError(f"the served model {self.folder!r} needs vocab_size, the number of real ids")
        if self.factory is not None and self.factory.count(":") != 1:
            raise ValueError(f"a factory is written 'module:function', got {self.factory!r}")


class ServerProcess:
    """One model server in a process of its own; it ends when this process ends or :meth:`close` is called.

    The token goes to the process through a pipe, so that no list of processes shows it.

    Args:
        source: The model.
        name: What the server is called in messages.
    """

    def __init__(self, source: ServedModel, name: str) -> None:
        self.name = name
        self.token = secrets.token_hex(32)
        threads = {key: str(source.num_threads) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        paths = os.pathsep.join(path for path in sys.path if path)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **threads, "PYTHONPATH": paths},
        )
        order = {**asdict(source), "arguments": dict(source.arguments), "token": self.token, "parent": os.getpid()}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # the process ended at once; connect says why

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def connect(self, timeout: float) -> socket.socket:
        """Wait until the model is loaded, and connect.

        Raises:
            ServerStartError: If the process ends, cannot load its model or takes longer than ``timeout`` seconds.
        """
        line = self._first_line(timeout)
        try:
            answer = json.loads(line) if line else {"error": self.obituary()}
        except ValueError:
            answer = {"error": f"it wrote {line[:80]!r}"}
        if "port" not in answer:
            raise ServerStartError(f"the {self.name} did not start: {answer.get('error')}")
        try:
            return socket.create_connection((LOOPBACK, int(answer["port"])), timeout)
        except OSError as error:
            raise ServerStartError(f"the {self.name} cannot be reached on {LOOPBACK}: {error}") from error

    def _first_line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, line, deadline = self._process.stdout.fileno(), b"", time.monotonic() + timeout
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise ServerStartError(
                    f"the {self.name} had not loaded its model after {timeout:g} s; raise start_timeout"
                )
            piece = os.read(descriptor, 4096)
            if not piece:
                return b""
            line += piece
        return line

    def obituary(self) -> str:
        """What is known of the process, for messages: whether it runs, its exit code and its last words."""
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"process {self.pid} still runs"
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"process {self.pid} ended with code {code}" + (f", its last words: {words[-1][:200]}" if words else "")

    def close(self) -> None:
        """End the process and wait for it; again is harmless."""
        if self._errors.closed:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
