"""The engine's tokens, flags and metadata are those of the sequential sampler, whatever K, batch, order and length.

In float64 identity is exact. In float32 two forwards of one model differ in rounding, so a first divergence is
allowed where the draw is a near-tie: its margin lies below ten times the measured gap between the two logits.
"""

from __future__ import annotations

import copy

import pytest
import torch

from saki.functional import RowKeys, Stream, keyed_uniforms, normalized_log_probs
from saki.models.toy import tiny_llama, tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine, SequentialSampler
from saki.types import Prompt, RolloutRequest

VOCAB, STOPS = 29, (1, 2, 3, 4)
FLOATS = (
    "student_logprobs",
    "behavior_logprobs",
    "teacher_logprobs",
    "beta",
    "kl",
    "tv",
    "acceptance_probability",
    "proposal_logprobs",
    "proposal_teacher_logprobs",
    "mode_student_logprobs",
    "mode_teacher_logprobs",
)


def models(dtype, family=tiny_qwen3, **options):
    student = family(VOCAB + 3, seed=1, dtype=dtype, scale=0.3, **options)
    return student, family(VOCAB + 5, layers=3, hidden=48, seed=2, dtype=dtype, scale=0.3, **options)


def prompts(num=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (num,), generator=generator).tolist()
    return [
        Prompt(100 + i, tuple(torch.randint(5, VOCAB, (length,), generator=generator).tolist()))
        for i, length in enumerate(lengths)
    ]


def engine(pair, batch_rows=64):
    student, teacher = (HFDecoder(copy.deepcopy(model), VOCAB) for model in pair)
    return ResidentEngine(student, teacher, STOPS, max_batch_rows=batch_rows, prefill_chunk=3)


def oracle(pair):
    def next_logits(model):
        return lambda prefix: model(input_ids=prefix).logits[0, -1, :VOCAB]

    return SequentialSampler(next_logits(pair[0]), next_logits(pair[1]), STOPS)


def request(**changes):
    values = {"seed": 5, "max_completion_length": 11, "num_generations": 3, "trust_region_radius": 0.15}
    return RolloutRequest(**(values | changes))


def by_row(batch):
    return {(int(batch.prompt_keys[i]), int(batch.sample_indices[i])): i for i in range(len(batch))}


def assert_identical(batch, reference):
    rows, others = by_row(batch), by_row(reference)
    assert rows.keys() == others.keys()
    for key, i in rows.items():
        j = others[key]
        assert batch.completion_token_ids(i) == reference.completion_token_ids(j)
        assert batch.prompt_token_ids(i) == reference.prompt_token_ids(j)
        assert batch.finish_reasons[i] == reference.finish_reasons[j]
        mask, other_mask = batch.response_mask[i], reference.response_mask[j]
        for name in ("proposal_ids", "correction_mask", "teacher_mode_ids"):
            assert torch.equal(getattr(batch, name)[i][mask], getattr(reference, name)[j][other_mask]), name
        for name in FLOATS:
            value, other = getattr(batch, name)[i][mask], getattr(reference, name)[j][other_mask]
            assert torch.allclose(value, other, atol=1e-9, rtol=0, equal_nan=True), name


@pytest.fixture(scope="module")
def pair():
    return models(torch.float64)


@pytest.fixture(scope="module")
def reference(pair):
    batch = oracle(pair).generate(prompts(), request())
    # The comparison means something only if the batch holds all that can happen.
    assert batch.correction_mask.sum() > 10
    assert set(batch.finish_reasons) == {"stop", "length"}
    assert len(set(batch.lengths.tolist())) > 4
    return batch


@pytest.mark.parametrize("block_size", [1, 2, 4, 8, 16])
def test_any_block_size(pair, reference, block_size):
    assert_identical(engine(pair).generate(prompts(), request(block_size=block_size)), reference)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 5, 7, 16])
def test_any_batch_size(pair, reference, batch_rows):
    assert_identical(engine(pair, batch_rows).generate(prompts(), request()), reference)


def test_any_order_and_any_share_of_the_rows(pair, reference):
    shuffled = [prompts()[i] for i in (4, 0, 5, 2, 1, 3)]
    assert_identical(engine(pair, 4).generate(shuffled, request(block_size=4)), reference)
    part = [Prompt(p.key, p.token_ids, sample_indices=(2, 0)) for p in shuffled[:2]]
    batch = engine(pair).generate(part, request())
    others = by_row(reference)
    assert_identical(batch, reference.select([others[key] for key in by_row(batch)]))


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_length_caps(pair, cap):
    capped = request(max_completion_length=cap)
    assert_identical(engine(pair).generate(prompts(), capped), oracle(pair).generate(prompts(), capped))


@pytest.mark.parametrize("changes", [{"trust_region_radius": 0.0}, {"behavior": "student"}, {"solver": "bisection"}])
def test_other_paths(pair, changes):
    asked = request(**changes)
    assert_identical(engine(pair).generate(prompts(), asked), oracle(pair).generate(prompts(), asked))


def test_other_architecture_and_grouped_queries():
    pair = models(torch.float64, tiny_llama, heads=4, kv_heads=1)
    asked = request(num_generations=2)
    assert_identical(engine(pair).generate(prompts(), asked), oracle(pair).generate(prompts(), asked))


def test_sliding_windows():
    full, teacher = models(torch.float64)
    config = copy.deepcopy(full.config)
    config.use_sliding_window, config.sliding_window = True, 4
    config.layer_types = ["sliding_attention", "full_attention"]
    student = type(full)(config).double().eval()
    student.load_state_dict(full.state_dict())
    asked = request(num_generations=2)
    windowed = engine((student, teacher)).generate(prompts(), asked)
    assert_identical(windowed, oracle((student, teacher)).generate(prompts(), asked))
    unwindowed = engine((full, teacher)).generate(prompts(), asked)
    assert not torch.equal(windowed.student_logprobs[:, -1], unwindowed.student_logprobs[:, -1])


def test_several_runs_of_one_engine_do_not_touch_each_other(pair, reference):
    shared = engine(pair)
    shared.generate(prompts(seed=9), request(seed=77, block_size=3))
    assert_identical(shared.generate(prompts(), request()), reference)


def draw_margins(logits_p, logits_t, row_keys, position, radius):
    """How near the draws at one position are to going another way, in nats: proposal, acceptance, residual."""
    from saki.functional import bridge_log_ratio, residual_log_weights, solve_bridge

    log_p, log_t = normalized_log_probs(logits_p), normalized_log_probs(logits_t)
    at = torch.tensor([position])

    def race_margin(weights, stream):
        uniforms = keyed_uniforms(row_keys, at, stream, weights.shape[-1])[0]
        best = (weights - (-uniforms.log()).log()).topk(2).values
        return float(best[0] - best[1]), int((weights - (-uniforms.log()).log()).argmax())

    proposal_margin, z = race_margin(log_p, Stream.PROPOSAL)
    bridge = solve_bridge(log_p, log_t, radius)
    u = bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)
    log_uniform = float(keyed_uniforms(row_keys, at, Stream.ACCEPT)[0].log())
    residual_margin, _ = race_margin(residual_log_weights(log_p, u), Stream.RESIDUAL)
    return proposal_margin, abs(log_uniform - min(0.0, float(u[z]))), residual_margin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_diverges_only_at_near_ties(dtype, record_property):
    pair = models(dtype)
    asked = request(num_generations=8, max_completion_length=16)
    batch, reference = engine(pair).generate(prompts(), asked), oracle(pair).generate(prompts(), asked)
    others, gap, divergences = by_row(reference), 0.0, []
    for key, i in by_row(batch).items():
        j = others[key]
        ours, theirs = batch.completion_token_ids(i), reference.completion_token_ids(j)
        flags = zip(batch.correction_mask[i].tolist(), reference.correction_mask[j].tolist(), strict=False)
        same = [a == b and f == g for a, b, (f, g) in zip(ours, theirs, flags, strict=False)]
        common = same.index(False) if False in same else len(same)
        for name in ("student_logprobs", "teacher_logprobs"):
            difference = (getattr(batch, name)[i, :common] - getattr(reference, name)[j, :common]).abs()
            gap = max(gap, float(difference.max()) if common else 0.0)
        if common < len(same):
            divergences.append((key, list(batch.prompt_token_ids(i)) + ours[:common], common))
        else:
            assert len(ours) == len(theirs)
    assert 0 < gap < (1e-4 if dtype == torch.float32 else 0.2)
    for (prompt, sample), prefix, at in divergences:
        keys = RowKeys(asked.seed, torch.tensor([prompt]), torch.tensor([sample]))
        logits = [plain_logits(model, prefix) for model in pair]
        margins = draw_margins(*logits, keys, at, asked.trust_region_radius)
        assert min(margins) < 10 * gap, (prompt, sample, at, margins, gap)
    rate = len(divergences) / batch.num_valid_tokens
    record_property("divergences_per_token", rate)
    assert rate < (1e-3 if dtype == torch.float32 else 0.1)


@torch.no_grad()
def plain_logits(model, prefix):
    """Logits after a prefix from one plain forward."""
    return model(input_ids=torch.tensor([prefix])).logits[0, -1, :VOCAB].double()
