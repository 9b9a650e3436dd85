"""The pool on Ray actors: the contract, bits, what listens, and processes that are killed or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("ray")

from saki.models import plain_state, tiny_qwen3
from saki.rollout import ResidentEngine
from saki.rollout.pool import PoolError, PoolSettings
from saki.rollout.pool.ray_runtime import RayRuntime
from tests.rollout.contract import STOPS, STUDENT, TEACHER, VOCAB, assert_same, check_engine
from tests.rollout.pool.in_process import in_process_pool
from tests.rollout.pool.on_ray import pid_of, pool_of
from tests.rollout.pool.test_pool import MANY, asked
from tests.rollout.served import tiny_decoder

# Ray and every actor start a process that imports the package: seconds each.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def runtime():
    runtime = RayRuntime(PoolSettings(replicas=3, cpus=0.5))
    processes = psutil.Process().children(recursive=True)
    yield runtime
    runtime.close()
    _, alive = psutil.wait_procs(processes, timeout=60)  # Ray's own processes take their time on a busy machine
    assert not [process for process in alive if process.status() != "zombie"]


def weights():
    import torch

    return plain_state(tiny_qwen3(VOCAB + 2, seed=5, dtype=torch.float64, scale=0.3))


@pytest.fixture(scope="module")
def undisturbed():
    pool, _ = in_process_pool(replicas=1)
    first = pool.generate(MANY, asked())
    report = pool.sync_student(weights(), 1)
    return first, report, pool.generate(MANY, asked(seed=2))


def test_contract_bits_and_what_listens(runtime, undisturbed):
    pool = pool_of(1)
    try:
        check_engine(pool, ResidentEngine(tiny_decoder(**STUDENT), tiny_decoder(**TEACHER), STOPS))
        ends = {
            connection.laddr.ip.removeprefix("::ffff:")
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert ends == {"127.0.0.1"}
        assert os.stat(runtime._folder).st_mode & 0o777 == 0o700
    finally:
        pool.close()
    assert runtime.ray.is_initialized()  # it was up before the pool


def test_a_wrong_token_opens_nothing(runtime):
    address = runtime.ray.get_runtime_context().gcs_address
    text = f"import ray; ray.init(address={address!r}, logging_level=50)"
    environment = {**os.environ, "RAY_AUTH_TOKEN": "wrong" * 8, "RAY_gcs_rpc_server_connect_timeout_s": "3"}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode
    assert b"InvalidAuthToken" in done.stderr
    # No list of processes shows the right one.
    token = os.environ["RAY_AUTH_TOKEN"]
    lines = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert lines
    assert not any(token in line for line in lines)


@pytest.mark.parametrize("replicas", [2, 3])
def test_more_replicas_give_the_same_bits(runtime, undisturbed, replicas):
    pool = pool_of(replicas)
    try:
        assert_same(pool.generate(MANY, asked()), undisturbed[0], exact=True)
        assert pool.sync_student(weights(), 1).checksum == undisturbed[1].checksum
        assert_same(pool.generate(MANY, asked(seed=2)), undisturbed[2], exact=True)
        assert pool.stats().failures == 0
    finally:
        pool.close()


def test_a_killed_and_a_stopped_replica_are_replaced(runtime, undisturbed):
    pool = pool_of(2, max_failures=3)
    try:
        stopped = pid_of(pool, 1)
        os.kill(pid_of(pool, 0), signal.SIGKILL)
        assert_same(pool.generate(MANY, asked()), undisturbed[0], exact=True)
        # One is stopped: it holds its work and its weights, and answers nothing.
        os.kill(stopped, signal.SIGSTOP)
        assert pool.sync_student(weights(), 1).checksum == undisturbed[1].checksum
        assert_same(pool.generate(MANY, asked(seed=2)), undisturbed[2], exact=True)
        assert pool.student_checksum() == undisturbed[1].checksum
        assert pool.stats().failures == 2
        assert "process is gone" in pool.stats().causes[0]
        assert "no sign of life" in pool.stats().causes[1]
        psutil.wait_procs([psutil.Process(stopped)] if psutil.pid_exists(stopped) else [], timeout=10)
        assert not psutil.pid_exists(stopped)  # not left behind, stopped for ever
    finally:
        pool.close()


def test_a_cluster_without_a_word_about_its_token_is_not_joined(monkeypatch, tmp_path):
    from saki.rollout.pool import ray_runtime

    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"no token for the Ray cluster 10\.0\.0\.1"):
        ray_runtime._check_authentication("10.0.0.1:6379")


def test_what_would_listen_elsewhere_is_ended(runtime, monkeypatch):
    """As where ray had been imported before its environment was set."""
    from saki.rollout.pool import ray_runtime

    class Elsewhere:
        ended = 0

        class util:  # noqa: N801
            get_node_ip_address = staticmethod(lambda: "192.0.2.7")

        def is_initialized(self):
            return False

        def init(self, **options):
            assert options["_node_ip_address"] == "127.0.0.1"

        def shutdown(self):
            self.ended += 1

    fake = Elsewhere()
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(PoolError, match=r"listen on 192\.0\.2\.7 instead of the loopback"):
        ray_runtime.RayRuntime(PoolSettings())
    assert fake.ended == 1
