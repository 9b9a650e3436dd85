"""The pool over replicas in this process: the contract, any order, any failure, and syncs."""

from __future__ import annotations

import logging
import weakref

import pytest
import torch
from safetensors.torch import save_file

from saki.models import plain_state, tiny_qwen3
from saki.rollout import ResidentEngine, WeightSyncError, model_checksum
from saki.rollout.pool import ClosedPoolError, PoolError, PoolSettings, TooManyFailuresError
from saki.types import Prompt
from tests.rollout.contract import PROMPTS, STOPS, STUDENT, TEACHER, VOCAB, assert_same, check_engine, request
from tests.rollout.pool.in_process import in_process_pool
from tests.rollout.served import tiny_decoder

MANY = [Prompt(key, tuple(3 + (key + i) % 15 for i in range(1 + key % 4))) for key in range(6)]


def asked(seed=1):
    return request(seed=seed, max_completion_length=6, block_size=4)


def resident():
    return ResidentEngine(tiny_decoder(**STUDENT), tiny_decoder(**TEACHER), STOPS)


def weights(seed=5):
    return list(plain_state(tiny_qwen3(VOCAB + 2, seed=seed, dtype=torch.float64, scale=0.3)))


@pytest.fixture(scope="module")
def undisturbed():
    pool, _ = in_process_pool(replicas=1)
    first = pool.generate(MANY, asked())
    report = pool.sync_student(weights(), 1)
    second = pool.generate(MANY, asked(seed=2))
    pool.close()
    return first, report, second


def test_contract():
    pool, host = in_process_pool()
    check_engine(pool, resident())
    pool.close()
    assert host.closed
    with pytest.raises(ClosedPoolError, match="closed"):
        pool.generate(PROMPTS, request())
    pool.close()


@pytest.mark.parametrize(("replicas", "pick"), [(2, 0), (2, -1), (3, 1)])
def test_any_number_of_replicas_in_any_order_gives_the_same_bits(undisturbed, replicas, pick):
    pool, host = in_process_pool(replicas=replicas, pick=pick)
    assert_same(pool.generate(MANY, asked()), undisturbed[0], exact=True)
    pool.sync_student(weights(), 1)
    assert_same(pool.generate(MANY[::-1], asked(seed=2)).select(backwards()), undisturbed[2], exact=True)
    assert len({number for number, call in host.log if call == "generate"}) == replicas
    assert pool.stats().units == 2 * len(MANY)


def backwards():
    return [4 * (len(MANY) - 1 - prompt) + sample for prompt in range(len(MANY)) for sample in range(4)]


FAULTS = {
    "dies in a rollout": {(1, "generate", 2): "die"},
    "hangs in a rollout": {(2, "generate", 1): "hang"},
    "raises in a rollout": {(1, "generate", 1): RuntimeError("CUDA error: an illegal memory access")},
    "dies as a sync begins": {(2, "begin_sync", 1): "die"},
    "dies in the middle of a sync": {(1, "add_bucket", 3): "die"},
    "hangs in the middle of a sync": {(2, "add_bucket", 2): "hang"},
    "dies as a sync ends": {(1, "finish_sync", 1): "die"},
    "all die in the middle of a sync": {(1, "add_bucket", 2): "die", (2, "add_bucket", 4): "die"},
    "dies, and so does its successor while it catches up": {
        (1, "add_bucket", 3): "die",
        (3, "add_bucket", 2): "die",
    },
    "dies after the sync": {(1, "generate", 6): "die", (2, "generate", 2): "die"},
    "the successor does not start": {(1, "generate", 1): "die", (3, "load", 1): "die"},
    "the successor hangs as it starts": {(1, "generate", 1): "die", (3, "load", 1): "hang"},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_failure_changes_no_bit(undisturbed, name, caplog):
    faults = FAULTS[name]
    pool, host = in_process_pool(faults, start_timeout=40.0, stall_timeout=20.0)
    first, report, second = undisturbed
    assert_same(pool.generate(MANY, asked()), first, exact=True)
    got = pool.sync_student(iter(weights()), 1)
    assert (got.version, got.checksum, got.num_bytes) == (report.version, report.checksum, report.num_bytes)
    assert_same(pool.generate(MANY, asked(seed=2)), second, exact=True)
    assert pool.student_checksum() == report.checksum
    stats = pool.stats()
    assert not host.faults
    assert stats.failures == len(faults) == len(stats.causes)
    assert len(host.hired) == 2 + len(faults)
    assert "is replaced" in caplog.text
    # What was lost is not counted twice.
    assert stats.committed_tokens == first.num_valid_tokens + second.num_valid_tokens


def test_a_slow_replica_is_no_hung_one(undisturbed):
    pool, host = in_process_pool({(1, "generate", 1): "slow"}, replicas=1, stall_timeout=4.0)
    assert_same(pool.generate(MANY, asked()), undisturbed[0], exact=True)
    assert host.clock.now > 4.0
    assert pool.stats().failures == 0
    pool, _ = in_process_pool({(1, "generate", 1): "slow"}, replicas=1, stall_timeout=4.0, unit_timeout=2.0)
    assert_same(pool.generate(MANY, asked()), undisturbed[0], exact=True)
    assert "unit_timeout" in pool.stats().causes[0]


def test_too_many_failures_end_in_one_error():
    faults = {(number, "generate", 1): "die" for number in range(1, 9)}
    pool, host = in_process_pool(faults, max_failures=3)
    with pytest.raises(
        TooManyFailuresError, match=r"4 replicas of the pool failed, max_failures is 3.*process is gone"
    ):
        pool.generate(MANY, asked())
    assert all(handle.killed for handle in host.hired)
    assert host.closed
    with pytest.raises(ClosedPoolError):
        pool.stats() and pool.generate(MANY, asked())


def test_a_flipped_bit_in_transit_is_found_and_the_bucket_sent_again(undisturbed, caplog):
    pool, _ = in_process_pool({(1, "add_bucket", 2): "flip", (2, "add_bucket", 5): "flip"})
    report = pool.sync_student(weights(), 1)
    assert report.checksum == undisturbed[1].checksum == pool.student_checksum()
    assert pool.stats().resent_buckets == 2
    assert pool.stats().failures == 0
    assert "another checksum than it was sent with" in caplog.text
    assert_same(pool.generate(MANY, asked(seed=2)), undisturbed[2], exact=True)


def test_a_way_that_damages_every_time_costs_the_replica(undisturbed):
    pool, _ = in_process_pool({(1, "add_bucket", n): "flip" for n in (2, 3, 4)})
    assert pool.sync_student(weights(), 1).checksum == undisturbed[1].checksum
    assert pool.stats().failures == 1
    assert_same(pool.generate(MANY, asked(seed=2)), undisturbed[2], exact=True)


def test_a_bit_that_flips_behind_the_check_is_found_at_the_end(undisturbed):
    def edit(number, call, answer):
        if (number, call) == (1, "add_bucket"):
            with torch.no_grad():
                next(host.hired[0].replica._student.named_tensors())[1].view(torch.int64).view(-1)[0] ^= 1
            host.edit = None
        return answer

    pool, host = in_process_pool(bucket_bytes=2**20)
    host.edit = edit
    assert pool.sync_student(weights(), 1).checksum == undisturbed[1].checksum
    assert pool.stats().failures == 1
    assert "sync again" in pool.stats().causes[0]
    assert_same(pool.generate(MANY, asked(seed=2)), undisturbed[2], exact=True)


def test_a_teacher_that_changes_is_found_at_the_sync():
    pool, host = in_process_pool(replicas=2)
    with torch.no_grad():
        next(host.hired[1].replica._engine._teacher.named_tensors())[1].view(-1)[3] += 1
    pool.sync_student(weights(), 1)
    assert "the teacher of replica 2 changed" in pool.stats().causes[0]
    assert pool.teacher_checksum() == pool.facts.teacher_checksum


def test_no_cache_of_older_weights_is_used_after_a_sync():
    shared = tuple(3 + i % 17 for i in range(40))
    prompts = [Prompt(key, (*shared, 3 + key)) for key in range(3)]
    pool, host = in_process_pool()
    before = pool.generate(prompts, request())
    pool.sync_student(weights(), 1)
    after = pool.generate(prompts, request())
    assert not torch.equal(before.completion_ids, after.completion_ids)
    fresh = resident()
    fresh.sync_student(weights(), 1)
    assert_same(after, fresh.generate(prompts, request()))
    # A forward on a cache of the old version is an error, not a wrong number.
    student = host.hired[0].replica._student
    cache = student.new_cache(1, 4)
    host.hired[0].replica.begin_sync(2)
    with pytest.raises(RuntimeError, match="not finished"):
        student.forward(torch.tensor([[3]]), torch.tensor([0]), cache, 1, 1)
    with pytest.raises(RuntimeError, match="not finished"):
        host.hired[0].replica.generate(prompts, request())


def test_the_source_of_the_weights_may_fail(undisturbed):
    pool, _ = in_process_pool()

    def stopping():
        yield from weights()[:4]
        raise OSError("the source of the weights failed")

    with pytest.raises(OSError, match="source of the weights"):
        pool.sync_student(stopping(), 1)
    for action in (lambda: pool.generate(MANY, asked()), pool.student_checksum):
        with pytest.raises(PoolError, match="not finished"):
            action()
    pool.sync_student(weights(), 1)
    assert_same(pool.generate(MANY, asked(seed=2)), undisturbed[2], exact=True)


def test_buckets_hold_no_more_than_they_may_and_large_weights_are_spread():
    seen = []

    def edit(number, call, answer):
        seen.append((call, host.hired[number - 1].arguments))
        return answer

    pool, host = in_process_pool(replicas=1, bucket_bytes=1000)
    host.edit = edit
    report = pool.sync_student(weights(), 1)
    buckets = [arguments[0] for call, arguments in seen if call == "add_bucket"]
    assert max(bucket.data.nbytes for bucket in buckets) <= 1000
    assert sum(bucket.data.nbytes for bucket in buckets) >= report.num_bytes
    largest = max(tensor.numel() * 8 for _, tensor in weights())
    assert largest > 2000
    assert report.checksum == model_checksum(weights())


def test_one_bucket_is_under_way_at_a_time():
    pool, host = in_process_pool(replicas=2, bucket_bytes=1000)
    sent, alive = [], []

    def share(bucket):
        sent.append(weakref.ref(bucket))
        alive.append(sum(other() is not None for other in sent))
        return bucket

    host.share = share
    for handle in host.hired:
        handle.start = forgetting(handle)
    pool.sync_student(iter(weights()), 1)
    assert len(sent) > 20
    assert max(alive) <= 2  # the one that is made, and the one before it


def forgetting(handle):
    """Starts calls without keeping the arguments once they are answered, as a process that is elsewhere."""
    start, result = handle.start, handle.result

    def answer():
        try:
            return result()
        finally:
            handle.arguments = ()

    handle.result = answer
    return start


def test_folders_that_differ_between_machines_are_refused():
    def edit(number, call, answer):
        from dataclasses import replace

        return replace(answer, teacher_checksum="other") if number > 1 and call == "load" else answer

    with pytest.raises(TooManyFailuresError, match="loaded other models than the first"):
        in_process_pool(edit=edit, max_failures=1)


def test_a_model_that_cannot_be_loaded_is_a_mistake_of_the_caller():
    from saki.rollout import ServedModel
    from saki.rollout.pool import EnginePool, ReplicaModels
    from tests.rollout.pool.in_process import InProcessHost

    broken = ServedModel(factory="tests.rollout.served:broken_decoder")
    host = InProcessHost(ReplicaModels(broken, None, STOPS, 4, 1, {}))
    with pytest.raises(ValueError, match="no such model"):
        EnginePool(host, PoolSettings(), host.clock)
    assert host.closed


def test_code_that_lies_in_a_model_folder_is_not_run(tmp_path):
    from saki.rollout import ServedModel
    from saki.rollout.pool import Replica, ReplicaModels

    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}'
    )
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        Replica(ReplicaModels(ServedModel(str(tmp_path), VOCAB), None, STOPS, 4, 1, {})).load()
    assert not (tmp_path / "ran").exists()


def test_without_a_teacher():
    pool, _ = in_process_pool(teacher=None)
    alone_asked = request(behavior="student", score_teacher=False)
    alone = ResidentEngine(tiny_decoder(**STUDENT), None, STOPS)
    assert_same(pool.generate(MANY, alone_asked), alone.generate(MANY, alone_asked))
    assert pool.teacher_checksum() is None
    with pytest.raises(ValueError, match="no teacher"):
        pool.generate(MANY, asked())
    with pytest.raises(ValueError, match="no teacher to score"):
        pool.score(pool.generate(MANY, alone_asked))


def test_an_error_of_the_progress_callback_is_its_own():
    pool, _ = in_process_pool()

    def progress(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.generate(MANY, asked(), progress)
    assert_same(pool.generate(MANY, asked()), in_process_pool()[0].generate(MANY, asked()), exact=True)
    assert pool.stats().failures == 0


def test_out_of_memory_in_a_replica_is_told(caplog):
    pool, host = in_process_pool(replicas=1, unit_rows=8)
    decoder = host.hired[0].replica._student
    forward = decoder.forward

    def small(token_ids, *rest):
        if token_ids.shape[0] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(token_ids, *rest)

    decoder.forward = small
    with caplog.at_level(logging.WARNING):
        batch = pool.generate(PROMPTS, request())
    assert_same(batch, resident().generate(PROMPTS, request()))
    assert pool.stats().halvings == 2
    assert pool.stats().failures == 0
    assert "lower unit_rows" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "replicas must be at least 1"),
        ({"unit_rows": 0}, "unit_rows"),
        ({"gpus": 2}, "gpus must be at most 1"),
        ({"devices": (4, 5)}, "gpus, the GPUs of a replica, is 0"),
        ({"devices": (4,), "gpus": 1, "replicas": 2}, "do not fit 1 devices"),
        ({"devices": (4,), "gpus": 1, "address": "auto"}, "one of the two"),
        ({"stall_timeout": 0}, "stall_timeout must be above 0"),
        ({"resources": {"engine": 0}}, "resources"),
    ],
)
def test_settings_that_make_no_pool(options, message):
    with pytest.raises(ValueError, match=message):
        PoolSettings(**options)


def test_a_negative_version_is_refused():
    pool, _ = in_process_pool()
    with pytest.raises(ValueError, match="at least 0"):
        pool.sync_student(weights(), -1)
    with pytest.raises(WeightSyncError, match="were not sent"):
        pool.sync_student([], 1)
