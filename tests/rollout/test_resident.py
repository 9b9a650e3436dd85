"""What the engine promises beside its law: metadata, paths, limits, scores, NaN rows, counters."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from saki.functional import kl_divergence, normalized_log_probs, pinsker_bound, total_variation
from saki.models import TableLM, tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine, RolloutEngine, TableDecoder
from saki.types import Prompt, RolloutRequest

VOCAB, STOPS = 23, (1, 2)


def qwen_pair(dtype=torch.float64):
    return tiny_qwen3(VOCAB, seed=1, dtype=dtype, scale=0.3), tiny_qwen3(VOCAB, seed=2, dtype=dtype, scale=0.3)


def engine_of(pair, **options):
    return ResidentEngine(*(HFDecoder(copy.deepcopy(model), VOCAB) for model in pair), STOPS, **options)


PROMPTS = [Prompt(7, (3, 4, 5)), Prompt(9, (6,)), Prompt(11, (3, 8, 9, 10, 11))]


def request(**changes):
    values = {"seed": 1, "max_completion_length": 12, "num_generations": 4, "trust_region_radius": 0.1}
    return RolloutRequest(**(values | changes))


def test_engines_satisfy_the_protocol():
    assert isinstance(engine_of(qwen_pair()), RolloutEngine)


def test_metadata_is_what_a_plain_forward_says():
    _student, _teacher = pair = qwen_pair()
    batch = engine_of(pair).generate(PROMPTS, request())
    assert batch.correction_mask.any()
    for row in range(len(batch)):
        prompt, completion = batch.prompt_token_ids(row), batch.completion_token_ids(row)
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            log_p, log_t = (
                normalized_log_probs(model(input_ids=ids).logits[0, len(prompt) - 1 : -1]) for model in pair
            )
        n = len(completion)
        y, z = batch.completion_ids[row, :n], batch.proposal_ids[row, :n]
        at = torch.arange(n)
        assert torch.allclose(batch.student_logprobs[row, :n], log_p[at, y], atol=1e-9)
        assert torch.allclose(batch.teacher_logprobs[row, :n], log_t[at, y], atol=1e-9)
        mode = batch.teacher_mode_ids[row, :n]
        assert torch.equal(mode, log_t.argmax(dim=-1))
        for name, law, token in (
            ("proposal_logprobs", log_p, z),
            ("proposal_teacher_logprobs", log_t, z),
            ("mode_student_logprobs", log_p, mode),
            ("mode_teacher_logprobs", log_t, mode),
        ):
            assert torch.allclose(getattr(batch, name)[row, :n], law[at, token], atol=1e-9), name
        beta = batch.beta[row, :n].unsqueeze(1)
        log_q = torch.log_softmax((1 - beta) * log_p + beta * log_t, dim=-1)
        assert torch.allclose(batch.behavior_logprobs[row, :n], log_q[at, y], atol=1e-9)
        assert torch.allclose(batch.kl[row, :n], kl_divergence(log_q, log_p), atol=1e-9)
        assert torch.allclose(batch.tv[row, :n], total_variation(log_q, log_p), atol=1e-9)
        accept = (log_q - log_p)[at, z].clamp(max=0).exp()
        assert torch.allclose(batch.acceptance_probability[row, :n], accept, atol=1e-9)
        assert torch.equal(batch.correction_mask[row, :n], y != z)
    assert float(batch.tv[batch.response_mask].max()) <= pinsker_bound(0.1)
    for same, fields in (
        (batch.proposal_ids == batch.completion_ids, ("proposal_logprobs", "proposal_teacher_logprobs")),
        (batch.teacher_mode_ids == batch.completion_ids, ("mode_student_logprobs", "mode_teacher_logprobs")),
    ):
        same = same & batch.response_mask
        assert same.any()
        assert not same[batch.response_mask].all()
        for name, committed in zip(fields, ("student_logprobs", "teacher_logprobs"), strict=True):
            assert torch.equal(getattr(batch, name)[same], getattr(batch, committed)[same])  # to the bit


def test_rows_end_at_their_stop_token_or_cap_and_padding_is_marked():
    batch = engine_of(qwen_pair()).generate(PROMPTS, request(num_generations=12))
    for row, reason in enumerate(batch.finish_reasons):
        ids = batch.completion_token_ids(row)
        assert not set(ids[:-1]) & set(STOPS)
        assert (reason == "stop") == (ids[-1] in STOPS)
        assert reason == "stop" or len(ids) == 12
    outside = ~batch.response_mask
    assert (batch.completion_ids[outside] == -1).all()
    assert not batch.correction_mask[outside].any()
    assert torch.isnan(batch.beta[outside]).all()
    assert {"stop", "length"} == set(batch.finish_reasons)


def test_student_only_path_asks_the_teacher_for_scores_alone():
    engine = engine_of(qwen_pair())
    batch = engine.generate(PROMPTS, request(trust_region_radius=0.0))
    stats = engine.stats()
    assert stats.teacher_q_forwards == 0
    assert stats.waves == 0
    assert stats.teacher_score_forwards > 0
    assert not batch.correction_mask.any()
    mask = batch.response_mask
    assert torch.equal(batch.behavior_logprobs[mask], batch.student_logprobs[mask])
    assert torch.isfinite(batch.teacher_logprobs[mask]).all()
    assert torch.equal(batch.proposal_logprobs[mask], batch.student_logprobs[mask])
    assert torch.equal(batch.proposal_teacher_logprobs[mask], batch.teacher_logprobs[mask])
    is_mode = mask & (batch.teacher_mode_ids == batch.completion_ids)
    assert torch.equal(batch.mode_teacher_logprobs[is_mode], batch.teacher_logprobs[is_mode])
    assert (batch.mode_teacher_logprobs > batch.teacher_logprobs)[mask & ~is_mode].all()
    assert torch.isnan(batch.mode_student_logprobs).all()  # a student that rolls out alone never sees the mode
    unscored = engine.generate(PROMPTS, request(behavior="student", score_teacher=False))
    assert torch.equal(unscored.completion_ids, batch.completion_ids)
    assert torch.isnan(unscored.teacher_logprobs).all()
    assert (unscored.teacher_mode_ids == -1).all()
    assert torch.equal(unscored.proposal_logprobs[mask], batch.student_logprobs[mask])
    assert torch.isnan(torch.stack([unscored.proposal_teacher_logprobs, unscored.mode_teacher_logprobs])).all()


def test_scores_are_those_of_a_plain_forward(monkeypatch):
    from saki.rollout import scoring

    pair = qwen_pair()
    engine = engine_of(pair, max_batch_rows=5)
    batch = engine.generate(PROMPTS, request())
    whole = engine.score(batch)
    monkeypatch.setitem(scoring.LOGITS_BUDGET, "cpu", 8 * 5 * VOCAB * 3)  # three positions a chunk
    chunked = engine.score(batch)
    mask = batch.response_mask
    for scores in (whole, chunked):
        assert torch.allclose(scores.logprobs[mask], batch.teacher_logprobs[mask], atol=1e-9)
        assert torch.equal(scores.mode_ids, batch.teacher_mode_ids)
        assert torch.allclose(scores.mode_logprobs[mask], batch.mode_teacher_logprobs[mask], atol=1e-9)
    assert torch.allclose(engine.score(batch, "student").logprobs[mask], batch.student_logprobs[mask], atol=1e-9)


def test_a_nan_row_ends_alone():
    student = TableLM(5, 1, seed=1)
    teacher = TableLM(5, 1, seed=2)
    clean = ResidentEngine(TableDecoder(copy.deepcopy(student)), TableDecoder(teacher), [0])
    with torch.no_grad():
        student.table[3] = torch.nan  # the law after token 3
    broken = ResidentEngine(TableDecoder(student), TableDecoder(copy.deepcopy(teacher)), [0])
    for radius in (0.1, 0.0):
        asked = request(trust_region_radius=radius, num_generations=60, max_completion_length=6)
        reference, batch = (e.generate([Prompt(0, (4,))], asked) for e in (clean, broken))
        assert "nan" in batch.finish_reasons
        assert batch.finish_reasons.count("nan") < len(batch)
        for row, reason in enumerate(batch.finish_reasons):
            ids, full = batch.completion_token_ids(row), reference.completion_token_ids(row)
            if reason == "nan":
                assert ids == full[: len(ids)]
                assert ids[-1] == 3
            else:
                assert ids == full


def test_padding_ids_are_never_sampled():
    student, teacher = tiny_qwen3(VOCAB + 9, seed=1, scale=0.3), tiny_qwen3(VOCAB + 40, seed=2, scale=0.3)
    with torch.no_grad():
        for model in (student, teacher):  # padding would win every draw
            model.get_output_embeddings().weight[VOCAB:] *= 50
    batch = engine_of((student, teacher)).generate(PROMPTS, request())
    assert int(batch.completion_ids.max()) < VOCAB
    assert int(batch.teacher_mode_ids.max()) < VOCAB


def test_waves_commit_several_tokens():
    engine = engine_of(qwen_pair())
    batch = engine.generate(PROMPTS[:1], request(num_generations=1, trust_region_radius=1e-6, block_size=4))
    stats = engine.stats()
    assert stats.committed_tokens == batch.num_valid_tokens
    assert stats.waves < batch.num_valid_tokens
    assert stats.teacher_q_forwards == stats.waves + 1  # and one prefill


def test_progress_counts_every_row():
    seen = []
    engine_of(qwen_pair(), max_batch_rows=5).generate(
        PROMPTS, request(), lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (12, 12)
    assert all(a[0] < b[0] for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least one prompt"),
        ([Prompt(1, (VOCAB,))], "token id 23"),
        ([Prompt(1, (3,) * 4096)], "the model takes 4096"),
    ],
)
def test_impossible_requests(prompts, message):
    with pytest.raises(ValueError, match=message):
        engine_of(qwen_pair()).generate(prompts, request())


def test_without_a_teacher():
    engine = ResidentEngine(HFDecoder(qwen_pair()[0], VOCAB), None, STOPS)
    with pytest.raises(ValueError, match="no teacher"):
        engine.generate(PROMPTS, request())
    batch = engine.generate(PROMPTS, request(behavior="student", score_teacher=False))
    assert batch.num_valid_tokens > 0
    with pytest.raises(ValueError, match="no teacher"):
        engine.score(batch)


def test_bad_engines_and_requests():
    a, b = TableDecoder(TableLM(4)), TableDecoder(TableLM(5))
    with pytest.raises(ValueError, match="share a vocabulary"):
        ResidentEngine(a, b, [0])
    with pytest.raises(ValueError, match="max_batch_rows"):
        ResidentEngine(a, None, [0], max_batch_rows=0)
    for field, value in [
        ("block_size", 0),
        ("trust_region_radius", -0.1),
        ("max_completion_length", 0),
        ("behavior", "teacher"),
        ("solver", "exact"),
        ("seed", -1),
    ]:
        with pytest.raises(ValueError, match=field):
            request(**{field: value})
