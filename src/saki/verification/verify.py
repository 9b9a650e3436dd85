"""Verification of a pair from end to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from saki.functional import request_seed
from saki.models import ModelPair
from saki.types import Prompt, RolloutBatch, RolloutRequest
from saki.verification.certificate import Certificate
from saki.verification.checks import (
    check_cache,
    check_compatibility,
    check_identity,
    check_records,
    check_stale_cache,
    check_sync,
)
from saki.verification.law_check import LawEvidence
from saki.verification.subject import Check, Settings, Subject

Progress = Callable[[str, float], None]
"""Called with (what is being done, share done in [0, 1])."""

MAX_FAULTS = 5
"""Faults of the records that the certificate quotes."""


def verify_pair(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    settings: Settings,
    facts: dict[str, Any] | None = None,
    progress: Progress = lambda doing, share: None,
) -> Certificate:
    """Check that the engine samples exactly the bridge law with these models on this machine.

    Compatibility; cached against plain logits; the same tokens whatever K and batch; every recorded value against a
    plain forward; the one-step law of proposals, acceptances and residual draws with an anytime-valid e-value; and a
    weight sync. The models are used as they are, in their dtypes, and end as they began.

    Args:
        pair: The models; the engine works on copies.
        prompts: Rendered prompts, at least one.
        settings: How much to verify.
        facts: What the certificate says of models and machine.
        progress: Told how far it is.

    Returns:
        The certificate; it says whether everything held.

    Raises:
        ValueError: If there is no teacher or no prompt.
    """
    if not prompts:
        raise ValueError("verification needs at least one prompt, got none")
    begin = time.perf_counter()
    progress("compatibility", 0.0)
    subject = Subject(pair, settings)
    checks = [check_compatibility(subject)]
    for side in ("student", "teacher"):
        progress(f"cache of the {side}", 0.05)
        checks.append(check_cache(subject, side))
    progress("identity", 0.15)
    checks.append(check_identity(subject, prompts[:4]))
    records, law, batch = _sample(subject, prompts, progress)
    checks += [records, law]
    progress("weight sync", 0.95)
    checks += [check_sync(subject, batch), check_stale_cache(subject)]
    progress("done", 1.0)
    return Certificate(tuple(checks), settings, facts or {}, time.perf_counter() - begin)


def _sample(subject: Subject, prompts: Sequence[Prompt], progress: Progress) -> tuple[Check, Check, RolloutBatch]:
    """Rounds of rollouts until the budget is spent or something is wrong; radii alternate, so a stale one shows."""
    settings = subject.settings
    loosest = max(subject.rounding.values(), key=lambda rounding: rounding.gap)
    evidence = LawEvidence(settings.alpha, loosest, settings.seed)
    faults: list[str] = []
    begin, number = time.perf_counter(), 0
    while True:
        share = max(evidence.num_tokens / settings.max_tokens, (time.perf_counter() - begin) / settings.max_seconds)
        if number and (share >= 1 or evidence.rejected or faults):
            break
        progress("rollouts", 0.2 + 0.75 * min(share, 1.0))
        request = RolloutRequest(
            seed=request_seed(settings.seed, "probe", number),
            max_completion_length=settings.max_completion_length,
            num_generations=settings.num_generations,
            trust_region_radius=settings.trust_region_radius / (1 if number % 2 == 0 else 4),
            block_size=settings.block_size,
        )
        batch = subject.engine.generate(prompts, request)
        found, laws = check_records(subject, batch)
        faults += found
        if batch.trust_region_radius != request.trust_region_radius:
            faults.append(f"asked for radius {request.trust_region_radius:g}, got {batch.trust_region_radius:g}")
        evidence.add(batch, laws)
        number += 1
    detail = f"{evidence.num_tokens} tokens in {number} rounds agree with plain forwards"
    if faults:
        detail = f"{len(faults)} faults, such as: " + "; ".join(faults[:MAX_FAULTS])
    return Check("records", not faults, detail, {"faults": len(faults), "rounds": number}), evidence.check(), batch
