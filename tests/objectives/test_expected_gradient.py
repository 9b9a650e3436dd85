"""Expected gradients of the methods, every path of a toy pair enumerated, against autograd of the exact objectives.

A path is one outcome of the coupled rollout: at each position a proposal z, whether it was rejected (C), and the
committed token y. Its probability is exact. The expected gradient is the sum over all paths of probability times the
gradient of the token losses that the method gives to that path (no clamp).

What is exact, and what it is the gradient of: the losses treat the prefix as given. So the expectation equals

    sum over prefixes h of  Pr(h)  grad [ objective at h ],        Pr(h) the rollout's law, not differentiated,

and the objective at h is KL(p||T) for ``opd``, and Eq. 17 with its correction branch for ``saki``. The gradient of the
reverse KL of whole sequences has one more part, sum of (grad Pr(h)) KL(p||T at h): how today's token changes tomorrow's
prefix. No method here has it, nor has the paper's; ``test_the_part_that_token_losses_leave_out`` says how large it is.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import t as student_t

from saki.functional import (
    acceptance_probability,
    bridge_log_ratio,
    kl_divergence,
    request_seed,
    residual_log_weights,
    solve_bridge,
)
from saki.methods import OPD, SAKI, TRB
from saki.models import TableLM
from saki.objectives import TokenTargets
from saki.rollout import ResidentEngine, TableDecoder
from saki.types import Prompt, RolloutBatch, RolloutRequest

VOCAB, LENGTH, STOP = 3, 3, 2
PROMPT = (1, 0)


def tables():
    return (
        TableLM(VOCAB, 2, seed=1, sharpness=1.0, use_parity=True),
        TableLM(VOCAB, 2, seed=2, sharpness=2.0, use_parity=True),
    )


def log_law(table, tokens):
    """[V] next-token log-probs after prompt and tokens, with gradient."""
    return torch.log_softmax(table.logits(torch.tensor([PROMPT + tokens]))[0, -1], dim=-1)


@dataclass(frozen=True)
class Step:
    proposal: int
    committed: int
    corrected: bool


@functools.cache
def laws(tokens, radius):
    """log p, log T and log q/p at one prefix, detached."""
    log_p, log_t = (log_law(model, tokens).detach() for model in tables())
    bridge = solve_bridge(log_p, log_t, radius)
    return log_p, log_t, bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)


def outcomes(tokens, radius):
    """Every (z, y, C) at a prefix with its probability, from the functions that the engine couples with."""
    log_p, _, u = laws(tokens, radius)
    accept = acceptance_probability(u)
    residual = residual_log_weights(log_p, u).exp()
    for z in range(VOCAB):
        yield Step(z, z, False), float(log_p[z].exp() * accept[z])
        rejected = float(log_p[z].exp() * (1 - accept[z]))
        if rejected > 0:
            for y in range(VOCAB):
                if residual[y] > 0:
                    yield Step(z, y, True), rejected * float(residual[y] / residual.sum())


def enumerate_paths(radius):
    """Every finished path, a tuple of steps, with its probability."""
    finished, open_paths = {}, {(): 1.0}
    for position in range(LENGTH):
        grown = {}
        for path, weight in open_paths.items():
            tokens = tuple(step.committed for step in path)
            for step, share in outcomes(tokens, radius):
                ended = step.committed == STOP or position == LENGTH - 1
                (finished if ended else grown)[(*path, step)] = weight * share
        open_paths = grown
    return finished


def as_batch(paths, radius):
    """The paths as a rollout batch, row by row."""
    rows = len(paths)
    ids = torch.full((rows, LENGTH), -1)
    proposals, modes, mask = ids.clone(), ids.clone(), torch.zeros(rows, LENGTH, dtype=torch.bool)
    corrections = mask.clone()
    log_p_y, log_t_y = (torch.full((rows, LENGTH), torch.nan, dtype=torch.float64) for _ in range(2))
    for row, path in enumerate(paths):
        for position, step in enumerate(path):
            log_p, log_t, _ = laws(tuple(s.committed for s in path[:position]), radius)
            ids[row, position], proposals[row, position] = step.committed, step.proposal
            modes[row, position] = int(log_t.argmax())
            mask[row, position], corrections[row, position] = True, step.corrected
            log_p_y[row, position], log_t_y[row, position] = log_p[step.committed], log_t[step.committed]
    prompt = torch.tensor([PROMPT] * rows)
    unknown = torch.full_like(log_p_y, torch.nan)
    return RolloutBatch(
        prompt_ids=prompt,
        prompt_mask=torch.ones_like(prompt, dtype=torch.bool),
        completion_ids=ids,
        response_mask=mask,
        proposal_ids=proposals,
        correction_mask=corrections,
        student_logprobs=log_p_y,
        behavior_logprobs=unknown,
        teacher_logprobs=log_t_y,
        teacher_mode_ids=modes,
        beta=unknown,
        kl=unknown,
        tv=unknown,
        acceptance_probability=unknown,
        proposal_logprobs=unknown,
        proposal_teacher_logprobs=unknown,
        mode_student_logprobs=unknown,
        mode_teacher_logprobs=unknown,
        prompt_keys=torch.zeros(rows, dtype=torch.long),
        sample_indices=torch.arange(rows),
        finish_reasons=("length",) * rows,
        student_version=0,
        trust_region_radius=radius,
        seed=0,
    )


def path_losses(method, student, batch):
    """[B] sum of the method's token losses over each row (Eq. 16 without 1 / N_valid), with gradient, no clamp."""
    mask = batch.response_mask
    routes = method.route(batch)[mask]
    targets = TokenTargets(
        completion_ids=batch.completion_ids[mask],
        teacher_mode_ids=batch.teacher_mode_ids[mask],
        teacher_logprobs=batch.teacher_logprobs[mask],
        student_logprobs=batch.student_logprobs[mask],
    )
    sequence = torch.cat([batch.prompt_ids, batch.completion_ids.clamp(min=0)], dim=1)
    width = batch.completion_ids.shape[1]
    log_pi = torch.log_softmax(student.logits(sequence)[:, -width - 1 : -1], dim=-1)[mask]
    ids = method.target_ids(routes, targets)
    losses, clamped = method.token_losses(log_pi.gather(1, ids.unsqueeze(1)).squeeze(1), routes, targets, None)
    assert not clamped.any()
    rows = torch.nonzero(mask)[:, 0]
    return torch.zeros(len(batch), dtype=torch.float64).index_add(0, rows, losses)


def expected_gradient(method, radius):
    """Sum over all paths of probability times gradient; with the paths."""
    student, _ = tables()
    paths = enumerate_paths(radius)
    weights = torch.tensor(list(paths.values()), dtype=torch.float64)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
    batch = as_batch(list(paths), radius)
    loss = (weights * path_losses(method, student, batch)).sum()
    return torch.autograd.grad(loss, student.table)[0], paths


def visited(paths):
    """Probability of each prefix at which a token is drawn."""
    weights = {}
    for path, weight in paths.items():
        for position in range(len(path)):
            tokens = tuple(step.committed for step in path[:position])
            weights[tokens] = weights.get(tokens, 0.0) + weight
    return weights


def exact_gradient(paths, objective):
    """Autograd of sum_h Pr(h) objective(student, teacher, h), Pr(h) a constant."""
    student, teacher = tables()
    total = sum(weight * objective(student, teacher, tokens) for tokens, weight in visited(paths).items())
    return torch.autograd.grad(total, student.table)[0]


RADII = [1e-6, 0.02, 0.3, 5.0]


@pytest.mark.parametrize("radius", RADII)
def test_saki_is_equation_17_and_its_correction_branch(radius):
    """E = sum_v min(p, q)(v) L_RKL(v) + TV(p, q) L_TM, at every visited prefix."""
    sampled, paths = expected_gradient(SAKI, radius)
    corrected = sum(weight for path, weight in paths.items() if any(step.corrected for step in path))
    assert corrected > 1e-4  # the second branch takes part

    def equation_17(student, teacher, tokens):
        log_p, log_t, u = laws(tokens, radius)
        p, q = log_p.exp(), (log_p + u).exp()
        log_pi = log_law(student, tokens)
        overlap = torch.minimum(p, q)
        reverse_kl = (overlap * (log_p - log_t) * log_pi).sum()  # -A log pi, A = -(log p - log T) a constant
        return reverse_kl - (1 - overlap.sum()) * log_pi[int(log_t.argmax())]

    assert torch.allclose(sampled, exact_gradient(paths, equation_17), atol=1e-10, rtol=0)
    # Each of the parts matters at this tolerance.
    for method in (TRB, OPD):
        assert not torch.allclose(expected_gradient(method, radius)[0], sampled, atol=1e-6, rtol=0)


@pytest.mark.parametrize("radius", RADII)
def test_trb_weighs_the_log_ratio_by_q(radius):
    sampled, paths = expected_gradient(TRB, radius)

    def under_q(student, teacher, tokens):
        log_p, log_t, u = laws(tokens, radius)
        return ((log_p + u).exp() * (log_p - log_t) * log_law(student, tokens)).sum()

    assert torch.allclose(sampled, exact_gradient(paths, under_q), atol=1e-10, rtol=0)


@pytest.mark.parametrize("method", [OPD, SAKI, TRB], ids=lambda method: method.name)
def test_student_rollouts_give_the_exact_reverse_kl(method):
    """At radius 0 every method is OPD: E = grad KL(p||T) at the visited prefixes (Eq. 25-32, 75-76)."""
    sampled, paths = expected_gradient(method, 0.0)
    assert not any(step.corrected for path in paths for step in path)

    def reverse_kl(student, teacher, tokens):
        return kl_divergence(log_law(student, tokens), log_law(teacher, tokens).detach())

    assert torch.allclose(sampled, exact_gradient(paths, reverse_kl), atol=1e-10, rtol=0)


def test_the_part_that_token_losses_leave_out():
    """KL of whole sequences = sum_h Pr(h) KL(h): its gradient is OPD's and sum_h (grad Pr(h)) KL(h)."""
    sampled, paths = expected_gradient(OPD, 0.0)
    student, teacher = tables()

    def sequence_log_prob(model, tokens):
        return sum(log_law(model, tokens[:i])[token] for i, token in enumerate(tokens))

    completions = {tuple(step.committed for step in path) for path in paths}
    log_p = torch.stack([sequence_log_prob(student, tokens) for tokens in completions])
    log_t = torch.stack([sequence_log_prob(teacher, tokens) for tokens in completions]).detach()
    assert float(log_p.detach().exp().sum()) == pytest.approx(1.0, abs=1e-12)
    (whole,) = torch.autograd.grad(kl_divergence(log_p, log_t), student.table)

    steering = sum(
        sequence_log_prob(student, tokens).exp()
        * kl_divergence(log_law(student, tokens), log_law(teacher, tokens)).detach()
        for tokens in visited(paths)
        if tokens
    )
    (left_out,) = torch.autograd.grad(steering, student.table)
    assert torch.allclose(whole, sampled + left_out, atol=1e-10, rtol=0)
    assert float(left_out.abs().max()) > 1e-3


def test_enumeration_has_the_law_of_the_coupling():
    """The enumerated paths themselves: tokens follow q, corrections have probability TV."""
    paths = enumerate_paths(0.3)
    log_p, _, u = laws((), 0.3)
    p, q = log_p.exp(), (log_p + u).exp()
    first = torch.zeros(VOCAB, dtype=torch.float64)
    corrected = 0.0
    for path, weight in paths.items():
        first[path[0].committed] += weight
        corrected += weight * path[0].corrected
    assert torch.allclose(first, q, atol=1e-12)
    assert corrected == pytest.approx(float((p - q).clamp(min=0).sum()), abs=1e-12)
    assert all(step.proposal != step.committed for path in paths for step in path if step.corrected)


ALPHA = 1e-6


def test_the_engine_samples_this_gradient():
    """Score-function estimate from real rollouts against the enumeration, false-alarm odds 1e-6 over all entries.

    Means of 40 groups of 300 rollouts; each entry of their mean is tested with Student's t, Bonferroni over entries.
    """
    radius, groups, size = 0.3, 40, 300
    exact, _ = expected_gradient(SAKI, radius)
    student, teacher = tables()
    engine = ResidentEngine(TableDecoder(tables()[0]), TableDecoder(teacher), [STOP], max_batch_rows=2000)
    request = RolloutRequest(
        seed=request_seed(5, "probe", 0), max_completion_length=LENGTH, trust_region_radius=radius, block_size=2
    )
    batch = engine.generate([Prompt(0, PROMPT, sample_indices=tuple(range(groups * size)))], request)
    assert 0.05 < float(batch.correction_mask[batch.response_mask].double().mean()) < 0.5
    means = []
    for group in range(groups):
        loss = path_losses(SAKI, student, batch.select(range(group * size, (group + 1) * size))).mean()
        means.append(torch.autograd.grad(loss, student.table)[0])
    means = torch.stack(means)
    deviation = means.mean(dim=0) - exact
    error = means.std(dim=0) / groups**0.5
    sampled = error > 0
    assert not exact[~sampled].any()  # contexts that cannot occur
    limit = student_t.isf(ALPHA / (2 * int(sampled.sum())), df=groups - 1)
    assert float((deviation / error)[sampled].abs().max()) < limit
    # The test has power: the gradient of TRB under the same rollouts is told from it.
    wrong, _ = expected_gradient(TRB, radius)
    assert float(((means.mean(dim=0) - wrong) / error)[sampled].abs().max()) > limit


def test_paths_are_all_different():
    paths = enumerate_paths(0.3)
    completions = {tuple(step.committed for step in path) for path in paths}
    every = set(itertools.product(range(VOCAB), repeat=LENGTH))
    assert completions == {full[: full.index(STOP) + 1] if STOP in full else full for full in every}
    assert len(paths) > len(completions)
