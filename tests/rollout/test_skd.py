"""One block of speculative knowledge distillation: acceptance, replacement, and what the metadata says."""

import pytest
import torch

from saki.functional import RowKeys, Stream, exponential_race, keyed_uniforms
from saki.functional.numerics import normalized_log_probs
from saki.models import TableLM
from saki.rollout import ResidentEngine, SequentialSampler, TableDecoder
from saki.rollout.skd import verify_skd_block
from saki.types import TOKEN_FIELDS, Prompt, RolloutRequest

ROWS, WIDTH, VOCAB, TOP_K = 300, 5, 6, 4


@pytest.fixture(scope="module")
def block():
    generator = torch.Generator().manual_seed(0)
    log_p = normalized_log_probs(torch.randn(ROWS, WIDTH, VOCAB, generator=generator).double())
    log_t = normalized_log_probs(torch.randn(ROWS, WIDTH, VOCAB, generator=generator).double())
    proposals = torch.multinomial(log_p.exp().flatten(0, 1), 1, generator=generator).view(ROWS, WIDTH)
    keys = RowKeys(3, torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.long))
    return log_p, log_t, proposals, keys, torch.arange(WIDTH).expand(ROWS, -1) + 7


def test_a_block_stops_at_the_first_proposal_outside_the_top_k(block):
    log_p, log_t, proposals, keys, positions = block
    verified = verify_skd_block(log_p, log_t, proposals, keys, positions, TOP_K)
    uniforms = keyed_uniforms(keys, positions, Stream.TEACHER_SAMPLE, VOCAB)
    stops = set()
    for row in range(ROWS):
        accepted = [int(z) in log_t[row, i].argsort(descending=True)[:TOP_K] for i, z in enumerate(proposals[row])]
        count = accepted.index(False) + 1 if False in accepted else WIDTH
        stops.add(count if False in accepted else 0)
        assert int(verified.counts[row]) == count
        expected = proposals[row, :count].tolist()
        if False in accepted:
            expected[-1] = int(exponential_race(log_t[row, count - 1], uniforms[row, count - 1]))
        assert verified.tokens[row, :count].tolist() == expected
        assert verified.corrections[row, :count].tolist() == [not ok for ok in accepted[:count]]
        assert verified.acceptance[row].tolist() == [float(ok) for ok in accepted]
    assert stops == set(range(WIDTH + 1))


def test_metadata_is_that_of_the_sampled_law(block):
    log_p, log_t, proposals, keys, positions = block
    verified = verify_skd_block(log_p, log_t, proposals, keys, positions, TOP_K)
    p, t = log_p.exp(), log_t.exp()
    inside = torch.zeros_like(p).scatter(-1, log_t.topk(TOP_K).indices, 1.0)
    q = p * inside + (p * (1 - inside)).sum(-1, keepdim=True) * t
    assert torch.allclose(q.sum(-1), torch.ones(()).double())
    chosen = q.gather(-1, verified.tokens.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(verified.behavior_logprobs.exp(), chosen)
    assert torch.allclose(verified.bridge.tv, 0.5 * (p - q).abs().sum(-1))
    assert torch.allclose(verified.bridge.kl, (q * (q / p).log()).sum(-1))
    assert torch.equal(verified.teacher_mode_ids, log_t.argmax(-1))
    for value, law, token in (
        (verified.proposal_logprobs, log_p, proposals),
        (verified.proposal_teacher_logprobs, log_t, proposals),
        (verified.mode_student_logprobs, log_p, log_t.argmax(-1)),
        (verified.mode_teacher_logprobs, log_t, log_t.argmax(-1)),
    ):
        assert torch.equal(value, law.gather(-1, token.unsqueeze(-1)).squeeze(-1))


def test_a_top_k_as_wide_as_the_vocabulary_is_the_student(block):
    log_p, log_t, proposals, keys, positions = block
    verified = verify_skd_block(log_p, log_t, proposals, keys, positions, VOCAB + 19)
    assert torch.equal(verified.tokens, proposals)
    assert not verified.corrections.any()
    assert torch.allclose(verified.behavior_logprobs, verified.student_logprobs)
    assert float(verified.bridge.tv.max()) < 1e-12


def test_nan_at_the_decision_marks_the_row(block):
    log_p, log_t, proposals, keys, positions = block
    clean = verify_skd_block(log_p, log_t, proposals, keys, positions, TOP_K)
    log_t = log_t.clone()
    log_t[:, 2] = torch.nan
    verified = verify_skd_block(log_p, log_t, proposals, keys, positions, TOP_K)
    reached = clean.counts > 2
    assert torch.equal(verified.broken, reached)
    assert (verified.counts[reached] == 2).all()
    assert torch.equal(verified.counts[~reached], clean.counts[~reached])


@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_the_engine_gives_the_tokens_of_token_wise_sampling(block_size):
    pair = TableLM(5, 2, seed=1, use_parity=True), TableLM(5, 2, seed=2, use_parity=True)
    request = RolloutRequest(
        seed=5, max_completion_length=9, num_generations=20, behavior="skd", top_k=2, block_size=block_size
    )
    prompts = [Prompt(3, (1, 2)), Prompt(4, (3,))]
    engine = ResidentEngine(*map(TableDecoder, pair), [0], max_batch_rows=17)
    batch = engine.generate(prompts, request)
    oracle = SequentialSampler(*((lambda ids, m=m: m.logits(ids)[0, -1]) for m in pair), [0]).generate(prompts, request)
    assert batch.correction_mask.any()
    for name in ("completion_ids", "correction_mask", "proposal_ids", "response_mask", "teacher_mode_ids"):
        assert torch.equal(getattr(batch, name), getattr(oracle, name)), name
    mask = batch.response_mask
    for name in (*(name for name in TOKEN_FIELDS if name.endswith("_logprobs")), "tv", "kl"):
        assert torch.allclose(getattr(batch, name)[mask], getattr(oracle, name)[mask], atol=1e-12), name


def test_requests_say_what_they_accept():
    with pytest.raises(ValueError, match="takes a top_k of at least 1, got None"):
        RolloutRequest(seed=1, max_completion_length=2, behavior="skd")
    with pytest.raises(ValueError, match="takes a top_k of at least 1, got 3"):
        RolloutRequest(seed=1, max_completion_length=2, top_k=3)
