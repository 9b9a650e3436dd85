"""What every engine promises, in one place: engines of saki's own draw the resident engine's tokens, too."""

from __future__ import annotations

import pytest
import torch

from saki.models import plain_state, tiny_qwen3
from saki.rollout import RolloutEngine, WeightSyncError, model_checksum
from saki.types import Prompt, RolloutRequest
from saki.types.batch import TENSOR_FIELDS
from tests.rollout.served import tiny_decoder

VOCAB, STOPS = 23, (1, 2)
STUDENT = {"vocab_size": VOCAB, "seed": 1, "dtype": "float64", "scale": 0.3}
TEACHER = {"vocab_size": VOCAB, "seed": 2, "dtype": "float64", "scale": 0.3, "layers": 3}
PROMPTS = [Prompt(7, (3, 4, 5)), Prompt(11, (3, 8, 9, 10, 11)), Prompt(9, (6,), (5, 1))]


def request(**changes):
    values = {"seed": 1, "max_completion_length": 12, "num_generations": 4, "trust_region_radius": 0.1}
    return RolloutRequest(**(values | changes))


def assert_same(batch, reference, exact=False):
    """Equal to rounding, or to the bit."""
    assert batch.finish_reasons == reference.finish_reasons
    assert batch.student_version == reference.student_version
    for name in TENSOR_FIELDS:
        got, wanted = getattr(batch, name), getattr(reference, name)
        assert got.dtype == wanted.dtype, name
        if got.is_floating_point():
            tolerance = {"atol": 0, "rtol": 0} if exact else {"atol": 1e-10}
            assert torch.allclose(got, wanted, equal_nan=True, **tolerance), name
        else:
            assert torch.equal(got, wanted), name


def check_engine(engine, resident):
    """Hold an engine of the pair above to the contract; ``resident`` is a :class:`ResidentEngine` of the same pair.

    The engine must be fresh. It is left with its first weights, under version 2.
    """
    assert isinstance(engine, RolloutEngine)
    # Rollouts, whole and student-only.
    told = []
    batch = engine.generate(PROMPTS, request(), lambda done, total: told.append((done, total)))
    assert told[-1] == (len(batch), len(batch)) == (10, 10)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert batch.correction_mask.any()
    assert_same(batch, resident.generate(PROMPTS, request()))
    for changes in ({"trust_region_radius": 0.0}, {"behavior": "student", "score_teacher": False}):
        assert_same(engine.generate(PROMPTS, request(**changes)), resident.generate(PROMPTS, request(**changes)))
    # Scores.
    for side in ("student", "teacher"):
        got, wanted = engine.score(batch, side), resident.score(batch, side)
        assert torch.allclose(got.logprobs, wanted.logprobs, atol=1e-10, equal_nan=True)
        assert torch.equal(got.mode_ids, wanted.mode_ids)
    # Weights.
    old = [(name, tensor.clone()) for name, tensor in tiny_decoder(**STUDENT).named_tensors()]
    new = tiny_qwen3(VOCAB + 2, seed=5, dtype=torch.float64, scale=0.3)
    before, teacher = engine.student_checksum(), engine.teacher_checksum()
    assert before == model_checksum(old)
    assert teacher == resident.teacher_checksum()
    report = engine.sync_student(plain_state(new), 1)
    resident.sync_student(plain_state(new), 1)
    assert (report.version, report.checksum) == (1, model_checksum(plain_state(new)))
    assert report.num_bytes == sum(tensor.numel() * tensor.element_size() for _, tensor in old)
    assert report.probe_change > 0.01
    assert engine.student_checksum() == report.checksum
    assert engine.teacher_checksum() == teacher
    assert_same(engine.generate(PROMPTS, request()), resident.generate(PROMPTS, request()))
    # What does not fit is refused, and what is half there does not draft.
    for wrong, message in (
        ([("nothing.weight", torch.zeros(1)), *old], "is unknown"),
        ([old[0], *old], "comes twice"),
        ([(old[0][0], old[0][1][:1]), *old[1:]], "has shape"),
        (old[1:], "were not sent"),
    ):
        with pytest.raises(WeightSyncError, match=message):
            engine.sync_student(wrong, 2)
    with pytest.raises(RuntimeError, match="not finished"):
        engine.generate(PROMPTS, request())
    assert engine.sync_student(iter(old), 2).checksum == before
    resident.sync_student(iter(old), 2)
    assert_same(engine.generate(PROMPTS, request()), resident.generate(PROMPTS, request()))
    # Mistakes of the caller, and counters.
    for prompts, message in (([], "at least one prompt"), ([Prompt(0, (VOCAB,))], "expected ids in")):
        with pytest.raises(ValueError, match=message):
            engine.generate(prompts, request())
    first = engine.stats()
    batch = engine.generate(PROMPTS, request())
    last = engine.stats()
    assert last.committed_tokens - first.committed_tokens == batch.num_valid_tokens
    assert last.waves > first.waves
    assert last.teacher_q_forwards > first.teacher_q_forwards
    assert sum(last.seconds.values()) > sum(first.seconds.values())
