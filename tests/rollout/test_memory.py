"""Out of memory halves the rows and goes on, with a warning; other errors and a single row do not."""

from __future__ import annotations

import pytest
import torch

from saki.rollout import ResidentEngine
from saki.rollout.memory import is_out_of_memory
from tests.rollout.contract import PROMPTS, STOPS, STUDENT, TEACHER, assert_same, request
from tests.rollout.served import tiny_decoder

WORDS = (
    "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
)


def engine(most_rows, error=None, side="student", **options):
    """An engine whose student or teacher has no memory for more than so many rows."""
    student, teacher = tiny_decoder(**STUDENT), tiny_decoder(**TEACHER)
    limited = student if side == "student" else teacher
    forward = limited.forward

    def small(token_ids, *rest):
        if token_ids.shape[0] > most_rows:
            raise error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(token_ids, *rest)

    limited.forward = small
    return ResidentEngine(student, teacher, STOPS, **options)


def whole():
    return ResidentEngine(tiny_decoder(**STUDENT), tiny_decoder(**TEACHER), STOPS)


@pytest.mark.parametrize("side", ["student", "teacher"])
@pytest.mark.parametrize("error", [None, RuntimeError(WORDS), MemoryError()])
def test_rows_are_halved_until_they_fit(side, error, caplog):
    told = []
    used = engine(3, error, side)
    batch = used.generate(PROMPTS, request(), lambda done, total: told.append(done))
    assert_same(batch, whole().generate(PROMPTS, request()))
    assert used.stats().halvings == 2  # 10, 5, 2
    assert told == sorted(set(told))
    assert told[-1] == 10
    assert used.stats().committed_tokens == batch.num_valid_tokens
    assert caplog.text.count("at most 2 rows at once from now on") == 1
    used.generate(PROMPTS, request())  # later requests begin with what fitted
    assert used.stats().halvings == 2


def test_scores_are_halved_as_well():
    batch = whole().generate(PROMPTS, request())
    used = engine(3, side="teacher")
    scores = used.score(batch)
    assert torch.equal(scores.mode_ids, batch.teacher_mode_ids)
    assert used.stats().halvings == 2


def test_a_row_that_does_not_fit_alone_is_an_error():
    used = engine(0)
    with pytest.raises(torch.OutOfMemoryError):
        used.generate(PROMPTS, request())
    assert used.stats().halvings == 3  # 10, 5, 2, 1


def test_other_errors_are_none_of_memory():
    used = engine(3, RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        used.generate(PROMPTS, request())
    assert used.stats().halvings == 0
    assert not is_out_of_memory(ValueError("out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))


def test_nothing_of_a_failed_attempt_stays_in_memory():
    import gc
    import weakref

    caches = []
    used = engine(3)
    new_cache = used._student.new_cache

    def remembered(*sizes):
        cache = new_cache(*sizes)
        assert not [old for old in caches if old() is not None and old().num_rows > sizes[0] > 3]
        caches.append(weakref.ref(cache))
        return cache

    used._student.new_cache = remembered
    used.generate(PROMPTS, request())
    gc.collect()
    assert len(caches) > 3
    assert not [cache for cache in caches if cache() is not None]
