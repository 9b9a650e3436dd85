"""Methods beyond the paper; docs/methods.md says where each comes from."""

from __future__ import annotations

import functools
import math

from saki.methods.branches import REVERSE_KL, TEACHER_MODE, WEIGHTED_TEACHER_MODE, low_probability, power
from saki.methods.record import Method
from saki.methods.vocabulary import (
    CENTERED_REVERSE_KL,
    COUPLED_KL,
    FULL_FORWARD_KL,
    FULL_REVERSE_KL,
    REVERSE_AND_FORWARD_KL,
)
from saki.objectives import route_by_entropy, route_by_sign, route_corrections, route_to_first

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

AOPD = Method(
    name="aopd",
    summary="Student rollouts; policy gradient where the teacher likes the token more, else forward KL.",
    behavior="student",
    router=route_by_sign,
    branches=(REVERSE_KL, FULL_FORWARD_KL),
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


def entropy_aware(entropy_quantile: float = 0.8, entropy_threshold: float | None = None) -> Method:
    """Entropy-aware distillation: forward KL joins where the teacher is unsure.

    Args:
        entropy_quantile: The threshold as a quantile of the teacher's entropies in the rollout.
        entropy_threshold: The threshold in nats, instead of the quantile.

    Raises:
        ValueError: If a value is out of range.
    """
    if not 0 <= entropy_quantile <= 1:
        raise ValueError(f"entropy_quantile must lie in [0, 1], got {entropy_quantile}")
    if entropy_threshold is not None and not entropy_threshold >= 0:
        raise ValueError(f"entropy_threshold must be >= 0 nats, got {entropy_threshold}")
    return Method(
        name="entropy_aware",
        summary="Student rollouts; sampled reverse KL, plus forward KL where the teacher's entropy is high.",
        behavior="student",
        router=functools.partial(route_by_entropy, quantile=entropy_quantile, threshold=entropy_threshold),
        branches=(REVERSE_KL, REVERSE_AND_FORWARD_KL),
        router_needs=frozenset({"teacher_entropy"}),
    )


def opsa(opsa_advantage: float = -1.0, max_probability: float = 0.1) -> Method:
    """The control without a teacher: a fixed advantage on tokens that the student found unlikely.

    Args:
        opsa_advantage: The advantage, negative to discourage them.
        max_probability: What counts as unlikely: p(y) below this, in (0, 1].

    Raises:
        ValueError: If a value is out of range.
    """
    if not math.isfinite(opsa_advantage):
        raise ValueError(f"opsa_advantage must be finite, got {opsa_advantage}")
    if not 0 < max_probability <= 1:
        raise ValueError(f"max_probability must lie in (0, 1], got {max_probability}")
    return Method(
        name="opsa",
        summary="Control without a teacher: student rollouts, a fixed advantage on unlikely tokens.",
        behavior="student",
        router=route_to_first,
        branches=(low_probability(opsa_advantage, max_probability),),
    )
