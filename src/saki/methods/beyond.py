"""Methods beyond the paper; docs/methods.md says where each comes from."""

from __future__ import annotations

import functools
import math

from saki.methods.branches import REVERSE_KL, TEACHER_MODE, WEIGHTED_TEACHER_MODE, fixed, power
from saki.methods.record import Method
from saki.methods.vocabulary import (
    CENTERED_REVERSE_KL,
    COUPLED_KL,
    FULL_FORWARD_KL,
    FULL_REVERSE_KL,
    reverse_and_forward_kl,
    truncated_forward_kl,
)
from saki.objectives import (
    Fact,
    StepFact,
    route_by_entropy,
    route_by_preference,
    route_corrections,
    route_lowest,
    route_to_first,
)
from saki.types import check_number

ENTROPY_THRESHOLD = 0.8
"""Nats of the teacher above which ``entropy_aware`` adds forward KL, as published."""

OPD_FULL = Method(
    name="opd_full",
    summary="Student rollouts; reverse KL over the whole vocabulary at every token.",
    behavior="student",
    router=route_to_first,
    branches=(FULL_REVERSE_KL,),
)

TRB_FULL = Method(
    name="trb_full",
    summary="Bridge rollouts; reverse KL over the whole vocabulary at every token.",
    behavior="bridge",
    router=route_to_first,
    branches=(FULL_REVERSE_KL,),
)

SAKI_RKL_FULL = Method(
    name="saki_rkl_full",
    summary="As saki, with reverse KL over the whole vocabulary at accepted tokens.",
    behavior="bridge",
    router=route_corrections,
    branches=(FULL_REVERSE_KL, TEACHER_MODE),
)

SAKI_WEIGHTED = Method(
    name="saki_weighted",
    summary="As saki, the correction loss weighted by the committed token's log-ratio where that is positive.",
    behavior="bridge",
    router=route_corrections,
    branches=(REVERSE_KL, WEIGHTED_TEACHER_MODE),
)

SAKI_FULL = Method(
    name="saki_full",
    summary="As saki, with forward KL over the whole vocabulary at corrections.",
    behavior="bridge",
    router=route_corrections,
    branches=(REVERSE_KL, FULL_FORWARD_KL),
)

FULL_COUPLED = Method(
    name="full_coupled",
    summary="Bridge rollouts; KL both ways over the whole vocabulary at every token, weighed by the coupling with T.",
    behavior="bridge",
    router=route_to_first,
    branches=(COUPLED_KL,),
)

VOPD = Method(
    name="vopd",
    summary="Student rollouts; sampled reverse KL less its mean, an unbiased estimator of lower variance.",
    behavior="student",
    router=route_to_first,
    branches=(CENTERED_REVERSE_KL,),
)


def aopd(aopd_threshold: float = 0.0, top_k: int = 10) -> Method:
    """Asymmetric distillation: policy gradient where the teacher likes the token more, forward KL elsewhere.

    Args:
        aopd_threshold: T(y) - p(y) above which the policy gradient is kept; -1 keeps it everywhere but where T(y) = 0
            and p(y) = 1, 1 nowhere.
        top_k: Tokens of the teacher that the forward KL looks at.

    Raises:
        ValueError: If a value is out of range.
    """
    if not -1 <= aopd_threshold <= 1:
        raise ValueError(f"aopd_threshold must lie in [-1, 1], got {aopd_threshold}")
    return Method(
        name="aopd",
        summary="Student rollouts; policy gradient where the teacher likes the token more, else forward KL.",
        behavior="student",
        router=functools.partial(route_by_preference, threshold=aopd_threshold),
        branches=(REVERSE_KL, truncated_forward_kl(top_k)),
    )


def power_opd(power_exponent: float = 1.0) -> Method:
    """PowerOPD: a bounded advantage of the log-ratio's sign.

    Args:
        power_exponent: a; 0 is opd.

    Raises:
        ValueError: If a is negative or not finite.
    """
    if not (math.isfinite(power_exponent) and power_exponent >= 0):
        raise ValueError(f"power_exponent must be finite and >= 0, got {power_exponent}")
    return Method(
        name="power_opd",
        summary="Student rollouts; the bounded advantage (T(y)^a - p(y)^a) / a.",
        behavior="student",
        router=route_to_first,
        branches=(power(power_exponent),),
    )


def entropy_aware(
    entropy_threshold: float | None = None,
    entropy_quantile: float | None = None,
    forward_weight: float = 1.0,
    top_k: int = 16,
) -> Method:
    """Entropy-aware distillation: forward KL joins where the teacher is unsure.

    Args:
        entropy_threshold: H(T) in nats above which it joins; 0.8 if no quantile is given either.
        entropy_quantile: The threshold as a quantile of the teacher's entropies in the step, instead.
        forward_weight: Its weight.
        top_k: Tokens of the teacher that it looks at.

    Raises:
        ValueError: If a value is out of range, or both a threshold and a quantile are given.
    """
    if entropy_quantile is not None:
        if not 0 <= entropy_quantile <= 1:
            raise ValueError(f"entropy_quantile must lie in [0, 1], got {entropy_quantile}")
        if entropy_threshold is not None:
            raise ValueError("entropy_threshold and entropy_quantile are two ways to say one thing; give one of them")
        needs: frozenset[Fact | StepFact] = frozenset({"teacher_entropy", "step_entropies"})
    else:
        entropy_threshold = ENTROPY_THRESHOLD if entropy_threshold is None else entropy_threshold
        check_number("entropy_threshold", entropy_threshold, least=0)
        needs = frozenset({"teacher_entropy"})
    return Method(
        name="entropy_aware",
        summary="Student rollouts; sampled reverse KL, plus forward KL where the teacher's entropy is high.",
        behavior="student",
        router=functools.partial(route_by_entropy, threshold=entropy_threshold, quantile=entropy_quantile),
        branches=(REVERSE_KL, reverse_and_forward_kl(forward_weight, top_k)),
        router_needs=needs,
    )


def opsa(opsa_advantage: float = -1.0, token_fraction: float = 0.2) -> Method:
    """The control without a teacher: a fixed advantage on the tokens that the student found least likely.

    Args:
        opsa_advantage: The advantage, negative to discourage them.
        token_fraction: Their share of all tokens of the step, in (0, 1].

    Raises:
        ValueError: If a value is out of range.
    """
    if not math.isfinite(opsa_advantage):
        raise ValueError(f"opsa_advantage must be finite, got {opsa_advantage}")
    if not 0 < token_fraction <= 1:
        raise ValueError(f"token_fraction must lie in (0, 1], got {token_fraction}")
    return Method(
        name="opsa",
        summary="Control without a teacher: student rollouts, a fixed advantage on the least likely tokens.",
        behavior="student",
        router=functools.partial(route_lowest, fraction=token_fraction),
        branches=(fixed("low_probability", opsa_advantage), fixed("untrained", 0.0)),
        router_needs=frozenset({"step_logprobs"}),
    )
