"""The external loop gives the resident engine's rollouts, keeps the engine contract and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest
import torch

from saki.models import plain_state, tiny_qwen3
from saki.rollout import (
    ExternalError,
    ExternalLoop,
    ResidentEngine,
    RolloutEngine,
    ServedModel,
    WeightSyncError,
    external_server,
    model_checksum,
)
from saki.rollout.external_errors import ClosedLoopError, ServerDiedError, ServerStartError
from saki.types import Prompt, RolloutRequest
from saki.types.batch import TENSOR_FIELDS
from tests.rollout.served import table_decoder, tiny_decoder

VOCAB, STOPS = 23, (1, 2)
STUDENT = {"vocab_size": VOCAB, "seed": 1, "dtype": "float64", "scale": 0.3}
TEACHER = {"vocab_size": VOCAB, "seed": 2, "dtype": "float64", "scale": 0.3, "layers": 3}
PROMPTS = [Prompt(7, (3, 4, 5)), Prompt(9, (6,)), Prompt(11, (3, 8, 9, 10, 11))]
TABLES = {"vocab_size": 5, "seed": 1}


def served(arguments, factory="tiny_decoder"):
    return ServedModel(factory=f"tests.rollout.served:{factory}", arguments=arguments)


@pytest.fixture(scope="module")
def loop():
    loop = ExternalLoop(served(STUDENT), served(TEACHER), STOPS, max_batch_rows=5, prefill_chunk=2)
    processes = [psutil.Process(pid) for pid in loop.server_pids]
    yield loop
    loop.close()
    assert not any(process.is_running() for process in processes)


@pytest.fixture
def resident():
    return ResidentEngine(tiny_decoder(**STUDENT), tiny_decoder(**TEACHER), STOPS)


@pytest.fixture
def token_wise(loop):
    """The other mode on the same servers: rows one at a time, one token a request."""
    other = object.__new__(ExternalLoop)
    other.__dict__.update(loop.__dict__, _token_wise=True)
    other._coordinator = type(loop._coordinator)(loop._student, loop._teacher, STOPS, max_batch_rows=1)
    return other


def request(**changes):
    values = {"seed": 1, "max_completion_length": 12, "num_generations": 4, "trust_region_radius": 0.1}
    return RolloutRequest(**(values | changes))


def assert_same(batch, reference):
    assert batch.finish_reasons == reference.finish_reasons
    for name in TENSOR_FIELDS:
        got, wanted = getattr(batch, name), getattr(reference, name)
        assert got.dtype == wanted.dtype, name
        if got.is_floating_point():
            assert torch.allclose(got, wanted, atol=1e-10, equal_nan=True), name
        else:
            assert torch.equal(got, wanted), name


def test_it_satisfies_the_protocol(loop):
    assert isinstance(loop, RolloutEngine)


@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_tokens_and_metadata_are_those_of_the_resident_engine(loop, resident, block_size):
    asked = request(block_size=block_size)
    batch = loop.generate(PROMPTS, asked)
    assert batch.correction_mask.any()
    assert_same(batch, resident.generate(PROMPTS, replace(asked, block_size=4)))


def test_the_token_wise_prototype_draws_the_same_tokens(token_wise, resident):
    asked = request(num_generations=2)
    before = token_wise.stats()
    batch = token_wise.generate(PROMPTS, asked)
    assert_same(batch, resident.generate(PROMPTS, asked))
    after = token_wise.stats()
    assert after.waves - before.waves == batch.num_valid_tokens  # one draft and one score request a token
    assert after.requests - before.requests >= 2 * batch.num_valid_tokens


@pytest.mark.parametrize("changes", [{"trust_region_radius": 0.0}, {"behavior": "student", "score_teacher": False}])
def test_student_only_rollouts(loop, resident, changes):
    before = loop.stats()
    batch = loop.generate(PROMPTS, request(**changes))
    assert_same(batch, resident.generate(PROMPTS, request(**changes)))
    after = loop.stats()
    assert after.teacher_q_forwards == before.teacher_q_forwards
    assert (after.teacher_score_forwards > before.teacher_score_forwards) == ("behavior" not in changes)


@pytest.mark.parametrize("side", ["student", "teacher"])
def test_scores(loop, resident, side):
    batch = loop.generate(PROMPTS, request())
    got, wanted = loop.score(batch, side), resident.score(batch, side)
    assert torch.allclose(got.logprobs, wanted.logprobs, atol=1e-10, equal_nan=True)
    assert torch.equal(got.mode_ids, wanted.mode_ids)
    assert torch.allclose(got.mode_logprobs, wanted.mode_logprobs, atol=1e-10, equal_nan=True)


def test_weights_are_streamed_and_what_does_not_fit_is_refused(loop, resident):
    new = tiny_qwen3(VOCAB + 2, seed=5, dtype=torch.float64, scale=0.3)
    old = dict(tiny_decoder(**STUDENT).named_tensors())
    before, teacher = loop.student_checksum(), loop.teacher_checksum()
    assert before == model_checksum(old.items())
    report = loop.sync_student(plain_state(new), 3)
    assert (report.version, report.checksum) == (3, model_checksum(plain_state(new)))
    assert report.probe_change > 0.01
    assert loop.student_checksum() == report.checksum
    assert loop.teacher_checksum() == teacher
    resident.sync_student(plain_state(new), 3)
    batch = loop.generate(PROMPTS, request())
    assert batch.student_version == 3
    assert_same(batch, resident.generate(PROMPTS, request()))
    with pytest.raises(WeightSyncError, match="is unknown"):
        loop.sync_student([("nothing.weight", torch.zeros(1)), *old.items()], 4)
    with pytest.raises(WeightSyncError, match="were not sent"):
        loop.sync_student(list(old.items())[1:], 4)

    def stopping():
        yield from list(old.items())[:2]
        raise RuntimeError("the source of the weights failed")

    with pytest.raises(RuntimeError, match="source of the weights"):
        loop.sync_student(stopping(), 4)
    assert loop.sync_student(old.items(), 0).checksum == before
    for (name, fetched), (_, tensor) in zip(loop._student.named_tensors(), old.items(), strict=True):
        assert torch.equal(fetched, tensor), name


def test_counters(loop):
    before = loop.stats()
    batch = loop.generate(PROMPTS, request(block_size=8))
    after = loop.stats()
    assert after.committed_tokens - before.committed_tokens == batch.num_valid_tokens
    waves = after.waves - before.waves
    # Both dense blocks of every wave: rows times K times V numbers of 8 bytes each, and the last waves are narrower.
    received = after.bytes_received - before.bytes_received
    assert 2 * 8 * VOCAB * batch.num_valid_tokens <= received <= waves * (2 * 5 * 8 * VOCAB * 8 + 4096) + 40 * 1024
    grown = {part: after.request_seconds[part] - before.request_seconds[part] for part in after.request_seconds}
    assert set(grown) == {"forward", "serialise", "transfer", "bridge", "coupling", "rest"}
    # The rest is what the overlap of both sides leaves, which may be nothing.
    assert all(seconds > 0 for part, seconds in grown.items() if part != "rest")
    assert len(after.wave_ratios) - len(before.wave_ratios) == waves
    # Sender and receiver both count while bytes travel, so a single wave may lie a little below 1.
    assert min(after.wave_ratios) > 0


def test_caches_are_dropped_in_the_servers(loop):
    for _ in range(3):
        loop.generate(PROMPTS, request())
    loop._student.call("new_cache", {"num_rows": 1, "num_slots": 1})
    with pytest.raises(ExternalError, match="KeyError"):
        loop._student.call("cache_bytes", {"cache": 0})


def test_only_the_loopback_is_bound(loop):
    for process in map(psutil.Process, loop.server_pids):
        ends = {connection.laddr.ip for connection in process.net_connections("inet")}
        assert ends == {"127.0.0.1"}


def test_nan_rows_end_alone_and_a_killed_server_is_named():
    loop = ExternalLoop(served({**TABLES, "nan_after": 3}, "table_decoder"), None, [0])
    asked = request(behavior="student", score_teacher=False, num_generations=60, max_completion_length=6)
    reference = ResidentEngine(table_decoder(**TABLES, nan_after=3), None, [0])
    batch = loop.generate([Prompt(0, (4,))], asked)
    assert "nan" in batch.finish_reasons
    assert_same(batch, reference.generate([Prompt(0, (4,))], asked))
    (pid,) = loop.server_pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ServerDiedError, match=r"student server.*ended with code -9"):
        loop.generate([Prompt(0, (4,))], asked)
    assert not psutil.pid_exists(pid)
    with pytest.raises(ClosedLoopError, match="closed"):
        loop.student_checksum()
    loop.close()


def test_a_model_that_cannot_be_loaded_is_named_and_nothing_stays():
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ServerStartError, match="student server did not start: ValueError: no such model"):
        ExternalLoop(served({}, "broken_decoder"), None, [0])
    assert {child.pid for child in psutil.Process().children()} <= before


PARENT = """
import json, os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "from saki.rollout.external_server import main; main()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
order = {"factory": "tests.rollout.served:table_decoder", "arguments": {"vocab_size": 4}, "num_threads": 1,
         "token": "x", "parent": os.getpid()}
child.stdin.write(json.dumps(order).encode() + b"\\n")
child.stdin.flush()
assert b"port" in child.stdout.readline()
print(child.pid, flush=True)
os._exit(1)
"""


def test_a_server_ends_with_its_parent():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.run([sys.executable, "-c", PARENT], env=environment, capture_output=True, check=False)
    pid, deadline = int(parent.stdout), time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.1)


def test_a_folder_is_served(tmp_path):
    model = tiny_qwen3(VOCAB + 2, seed=1, dtype=torch.float64, scale=0.3)
    model.save_pretrained(tmp_path)
    loop = ExternalLoop(ServedModel(str(tmp_path), VOCAB, dtype="float64"), None, STOPS)
    try:
        assert loop.student_checksum() == model_checksum(plain_state(model))
        asked = request(behavior="student", score_teacher=False)
        reference = ResidentEngine(tiny_decoder(**STUDENT), None, STOPS).generate(PROMPTS, asked)
        assert_same(loop.generate(PROMPTS, asked), reference)
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "folder or a factory"),
        ({"folder": "a", "factory": "b:c"}, "folder or a factory"),
        ({"folder": "a"}, "needs vocab_size"),
        ({"factory": "b.c"}, "module:function"),
    ],
)
def test_bad_sources(options, message):
    with pytest.raises(ValueError, match=message):
        ServedModel(**options)


@pytest.mark.slow
@pytest.mark.parametrize("token_wise", [False, True])
def test_a_wave_takes_little_more_than_its_parts(token_wise):
    """The condition under which the loop counts as a baseline, on a pair of 1.1M and 3.6M with vocabulary 4,096."""
    student = {"vocab_size": 4096, "seed": 1, "hidden": 96, "layers": 4}
    teacher = {"vocab_size": 4096, "seed": 2, "hidden": 192, "layers": 6}
    loop = ExternalLoop(served(student), served(teacher), [0], token_wise=token_wise)
    prompts = [Prompt(key, tuple(range(5, 17))) for key in range(2 if token_wise else 8)]
    try:
        loop.generate(prompts, request(trust_region_radius=0.02, max_completion_length=64, num_generations=1))
        loop.stats().check_honest()
    finally:
        loop.close()


def test_a_server_loads_the_revision_and_the_code_that_it_is_told(monkeypatch):
    asked = []

    def load(folder, **options):
        asked.append((folder, options))
        return tiny_qwen3(VOCAB, seed=1)

    monkeypatch.setattr(external_server, "load_causal_lm", load)
    source = ServedModel("someone/model", VOCAB, revision="1f2e", trust_remote_code=True)
    external_server.load_decoder(asdict(source))
    wanted = {"dtype": "float32", "device": "cpu", "revision": "1f2e", "trust_remote_code": True}
    assert asked == [("someone/model", wanted)]
