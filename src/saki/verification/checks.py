"""The checks that compare numbers: caches, records, identity of tokens, weight sync."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saki.functional import normalized_log_probs, pinsker_bound, request_seed
from saki.models import plain_state
from saki.rollout import StaleCacheError
from saki.rollout.verifier import take
from saki.types import Prompt, RolloutBatch, RolloutRequest
from saki.verification.laws import RowLaws, plain_log_probs, row_laws, valid_rows
from saki.verification.subject import Check, Subject

KL_SHORTFALL = 2e-4
"""How far below the radius KL may stay, relative, where beta lies inside (0, 1)."""

KL_SLACK = 20.0
"""KL moves by at most about this many times the shift of the log-probs it is made of."""

NEAR_TIES_PER_TOKEN = {torch.float64: 0.0, torch.float32: 0.01, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Divergences between block sizes per token that rounding explains; in float64 there must be none."""


def check_compatibility(subject: Subject) -> Check:
    """Tokenizers, widths, stop set and architectures; what did not fit was refused when the pair was loaded."""
    spec, pair = subject.spec, subject.pair
    reports = {"student": pair.student_architecture, "teacher": pair.teacher_architecture}
    unverified = [f"{side} type {r.model_type!r}" for side, r in reports.items() if r is not None and not r.verified]
    detail = (
        f"{spec.vocab_size} shared ids, stop ids {list(spec.stop_token_ids)}, "
        + ", ".join(f"{side} {r.model_class}" for side, r in reports.items() if r is not None)
        + (f"; not among the verified types: {', '.join(unverified)}" if unverified else "")
    )
    figures = {
        "vocab_size": spec.vocab_size,
        "stop_token_ids": list(spec.stop_token_ids),
        "notes": list(spec.notes),
        **{f"{side}_type": r.model_type for side, r in reports.items() if r is not None},
    }
    return Check("compatibility", True, detail, figures)


@torch.no_grad()
def check_cache(subject: Subject, side: str) -> Check:
    """Log-probs through the slab cache, under random commits and roll-backs, against plain forwards of whole texts."""
    settings, decoder = subject.settings, subject.decoders[side]
    generator = torch.Generator().manual_seed(settings.seed)
    rows, width, vocab = 3, 4, subject.spec.vocab_size
    slots = 16 + width * settings.cache_waves

    def draw(high: int, *shape: int, low: int = 0) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    texts = [draw(vocab, length).tolist() for length in (2, 5, 9)]
    longest = max(map(len, texts))
    cache = decoder.new_cache(rows, slots)
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=decoder.device)
    decoder.forward(padded, torch.zeros(rows, dtype=torch.long, device=decoder.device), cache, longest, 1)
    worst = 0.0
    for _ in range(settings.cache_waves):
        starts = torch.tensor([len(text) for text in texts], device=decoder.device)
        block = draw(vocab, rows, width)
        logits = decoder.forward(block.to(decoder.device), starts, cache, int(starts.max()) + width, width)
        cached = normalized_log_probs(logits).cpu()
        for row, text in enumerate(texts):
            # The law after token i of the block is that of the position behind it; one more id asks for the last one.
            plain = plain_log_probs(
                subject.model(side), text + block[row, :1].tolist(), [*block[row, 1:].tolist(), 0], vocab
            )
            worst = max(worst, _gap(cached[row], plain))
            kept = len(text) + int(draw(width + 1, 1, low=-2))
            texts[row] = (text + block[row].tolist())[: max(1, kept)]
    limit = subject.rounding[side].allowed
    return Check(
        f"{side}: cached against plain logits",
        worst <= limit,
        f"largest gap {worst:.2e} nats in {settings.cache_waves} waves of commits and roll-backs, allowed {limit:.2e}",
        {"gap": worst, "allowed": limit, "waves": settings.cache_waves},
    )


def _gap(a: Tensor, b: Tensor) -> float:
    """Largest difference of log-probs; infinite where only one of them is impossible or not a number."""
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return math.inf
    difference = (a - b)[torch.isfinite(a)]
    return float(difference.abs().max()) if difference.numel() else 0.0


def check_records(subject: Subject, batch: RolloutBatch) -> tuple[list[str], list[tuple[int, RowLaws]]]:
    """Every value that a rollout carries, against a plain forward of the committed text.

    Returns:
        What is wrong, one phrase each (at most one per row and kind), and each row's exact laws.
    """
    faults: list[str] = []
    laws = []
    for row in valid_rows(batch):
        ids, prompt = batch.completion_token_ids(row), batch.prompt_token_ids(row)
        faults += [f"row {row}: {text}" for text in _structure_faults(subject, batch, row, ids)]
        outside = torch.stack([batch.completion_ids[row], batch.proposal_ids[row], batch.teacher_mode_ids[row]])
        if int(outside.max()) >= subject.spec.vocab_size:
            continue  # said already; the plain models have no such id
        log_p, log_t = (
            plain_log_probs(model, prompt, ids, subject.spec.vocab_size) for model in (subject.student, subject.teacher)
        )
        exact = row_laws(log_p, log_t, batch.beta[row, : len(ids)].double())
        faults += [f"row {row}: {text}" for text in _value_faults(subject, batch, row, exact)]
        laws.append((row, exact))
    return faults, laws


def _structure_faults(subject: Subject, batch: RolloutBatch, row: int, ids: list[int]) -> list[str]:
    stops, reason, cap = (
        set(subject.spec.stop_token_ids),
        batch.finish_reasons[row],
        subject.settings.max_completion_length,
    )
    count = len(ids)
    proposals, flags = batch.proposal_ids[row, :count].tolist(), batch.correction_mask[row, :count].tolist()
    found = []
    if max(*ids, *proposals, *batch.teacher_mode_ids[row, :count].tolist()) >= subject.spec.vocab_size:
        found.append("a padding id has probability")
    if any(token in stops for token in ids[:-1]):
        found.append("the text goes on behind a stop token")
    if (reason == "stop") != (ids[-1] in stops):
        found.append(f"finish reason {reason!r}, but the last token says otherwise")
    if reason == "length" and count != cap:
        found.append(f"ended by length at {count} of {cap} tokens")
    if any((z == y) == c for z, y, c in zip(proposals, ids, flags, strict=True)):
        found.append("a correction flag stands at a kept proposal, or none at a replaced one")
    return found


def _value_faults(subject: Subject, batch: RolloutBatch, row: int, exact: RowLaws) -> list[str]:
    count = exact.log_p.shape[0]
    allowed = 2 * max(rounding.allowed for rounding in subject.rounding.values()) + 4 * torch.finfo(batch.kl.dtype).eps
    ids, proposals = batch.completion_ids[row, :count], batch.proposal_ids[row, :count]
    modes = batch.teacher_mode_ids[row, :count].clamp(min=0)
    expected = {
        "student_logprobs": take(exact.log_p, ids),
        "teacher_logprobs": take(exact.log_t, ids),
        "behavior_logprobs": take(exact.log_q, ids),
        "acceptance_probability": take(exact.log_ratio, proposals).clamp(max=0.0).exp(),
        "proposal_logprobs": take(exact.log_p, proposals),
        "proposal_teacher_logprobs": take(exact.log_t, proposals),
        "mode_student_logprobs": take(exact.log_p, modes),
        "mode_teacher_logprobs": take(exact.log_t, modes),
        "tv": (exact.log_p.exp() - exact.log_q.exp()).clamp(min=0).sum(dim=-1),
    }
    found = []
    for name, value in expected.items():
        recorded = getattr(batch, name)[row, :count].double()
        scale = 1 + value.abs().nan_to_num(posinf=0.0, neginf=0.0)
        off = (recorded - value).abs() > allowed * scale
        if bool((off | (torch.isfinite(recorded) != torch.isfinite(value))).any()):
            found.append(f"{name} differ from a plain forward by up to {float((recorded - value).abs().max()):.1e}")
    mode_gap = exact.log_t.max(dim=-1).values - take(exact.log_t, modes)
    if bool((mode_gap > allowed).any()):
        found.append("a teacher mode is not the teacher's most likely token")
    found += _radius_faults(batch, row, exact, KL_SLACK * allowed)
    return found


def _radius_faults(batch: RolloutBatch, row: int, exact: RowLaws, slack: float) -> list[str]:
    """Whether each recorded beta is the largest one that the radius allows (Eq. 2)."""
    count, radius = exact.kl.shape[0], batch.trust_region_radius
    beta, recorded = batch.beta[row, :count].double(), batch.kl[row, :count].double()
    found = []
    if bool((exact.kl > radius + slack).any()):
        found.append(f"KL(q||p) reaches {float(exact.kl.max()):.4g} above the radius {radius:g}")
    inside = (beta > 0) & (beta < 1)
    if bool((inside & (exact.kl < radius * (1 - KL_SHORTFALL) - slack)).any()):
        found.append(f"KL(q||p) stays at {float(exact.kl[inside].min()):.4g}, the radius {radius:g} allows more")
    if bool(((beta == 0) & (exact.kl_teacher <= radius - slack)).any()):
        found.append("beta is 0 where the whole teacher lies inside the radius")
    if bool(((recorded - exact.kl).abs() > slack).any()):
        found.append("recorded KL(q||p) differs from a plain forward")
    if bool((batch.tv[row, :count] > pinsker_bound(radius) + slack).any()):
        found.append("TV(p, q) lies above the Pinsker bound")
    return found


def check_identity(subject: Subject, prompts: Sequence[Prompt]) -> Check:
    """Tokens and flags under other block and batch sizes; in float64 they are equal, else up to near-ties."""
    settings = subject.settings
    request = RolloutRequest(
        seed=request_seed(settings.seed, "probe", 2**31),
        max_completion_length=settings.max_completion_length,
        num_generations=2,
        trust_region_radius=settings.trust_region_radius,
        block_size=settings.block_size,
    )
    reference = subject.engine.generate(prompts, request)
    divergences = tokens = 0
    for block_size, batch_rows in ((1, settings.batch_rows), (3, 3)):
        other = subject.new_engine(batch_rows).generate(prompts, replace(request, block_size=block_size))
        for row in range(len(reference)):
            divergences += _history(reference, row) != _history(other, row)
        tokens += reference.num_valid_tokens
    precision = min((decoder.dtype for decoder in subject.decoders.values()), key=lambda dtype: -torch.finfo(dtype).eps)
    allowed = NEAR_TIES_PER_TOKEN[precision] * tokens
    return Check(
        "same tokens for other block and batch sizes",
        divergences <= allowed,
        f"{divergences} of {2 * len(reference)} completions differ ({tokens} tokens, {str(precision)[6:]}), "
        f"rounding explains up to {allowed:.0f}",
        {"divergences": divergences, "tokens": tokens, "allowed": allowed},
    )


def _history(batch: RolloutBatch, row: int) -> tuple[Any, ...]:
    count = int(batch.lengths[row])
    fields = (batch.completion_ids, batch.proposal_ids, batch.correction_mask)
    return batch.finish_reasons[row], *(tuple(value[row, :count].tolist()) for value in fields)


@torch.no_grad()
def check_sync(subject: Subject, batch: RolloutBatch) -> Check:
    """A sync of changed weights shows in the student's scores and nowhere else, and a second one takes it back."""
    engine, student = subject.engine, subject.student
    before = engine.student_checksum(), engine.teacher_checksum()
    name, changed = max(student.named_parameters(), key=lambda item: item[1].numel() if item[1].dim() > 1 else 0)
    original = changed.detach().clone()
    known = (batch.completion_ids < subject.spec.vocab_size).all(dim=1)
    rows = [row for row in valid_rows(batch) if bool(known[row])][:4]
    part = batch.select(rows)
    problems = []
    try:
        changed.mul_(1.0 + 2.0**-5)
        report = engine.sync_student(plain_state(student), 1)
        if engine.student_checksum() == before[0]:
            problems.append("the student's checksum did not change")
        if engine.teacher_checksum() != before[1]:
            problems.append("the teacher's checksum changed")
        gap = _score_gap(subject, part)
        if gap > 4 * subject.rounding["student"].allowed:
            problems.append(f"scores after the sync differ from the new weights by {gap:.2e} nats")
    finally:
        changed.copy_(original)
    engine.sync_student(plain_state(student), 2)
    if engine.student_checksum() != before[0]:
        problems.append("the old weights did not come back")
    restored = _score_gap(subject, part)
    if restored > 4 * subject.rounding["student"].allowed:
        problems.append(f"scores after the second sync differ by {restored:.2e} nats")
    detail = "; ".join(problems) or (
        f"probe moved by {report.probe_change:.2e} nats with {name}, scores follow the new weights within {gap:.1e} "
        "nats, teacher unchanged, old weights restored bit for bit"
    )
    return Check("weight sync", not problems, detail, {"gap": gap, "probe_change": report.probe_change})


def _score_gap(subject: Subject, batch: RolloutBatch) -> float:
    scores = subject.engine.score(batch, "student").logprobs
    worst = 0.0
    for row in range(len(batch)):
        ids = batch.completion_token_ids(row)
        plain = plain_log_probs(subject.student, batch.prompt_token_ids(row), ids, subject.spec.vocab_size)
        worst = max(worst, _gap(scores[row, : len(ids)].double(), take(plain, torch.tensor(ids))))
    return worst


def check_stale_cache(subject: Subject) -> Check:
    """A cache filled before a sync is refused after it."""
    decoder = subject.decoders["student"]
    cache = decoder.new_cache(1, 4)
    decoder.version += 1
    try:
        ids = torch.zeros(1, 1, dtype=torch.long, device=decoder.device)
        decoder.forward(ids, torch.zeros(1, dtype=torch.long, device=decoder.device), cache, 1, 1)
    except StaleCacheError:
        return Check("stale caches", True, "a cache of older weights is refused")
    finally:
        decoder.version -= 1
    return Check("stale caches", False, "a cache of older weights was used")
