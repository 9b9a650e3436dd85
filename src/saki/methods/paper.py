"""Methods of the paper: SAKI, its baselines, its controls and its ablation."""

from __future__ import annotations

import math
from dataclasses import replace

from saki.methods.branches import REVERSE_KL, TEACHER_MODE, TEACHER_SAMPLE, extrapolated, power
from saki.methods.record import Branch, Method, VocabularyBranch
from saki.methods.vocabulary import CENTERED_REVERSE_KL, FULL_FORWARD_KL, FULL_REVERSE_KL
from saki.objectives import route_by_tv, route_corrections, route_randomly, route_to_first

OPD = Method(
    name="opd",
    summary="On-policy distillation: student rollouts, sampled reverse KL at every token.",
    behavior="student",
    router=route_to_first,
    branches=(REVERSE_KL,),
)

TRB = Method(
    name="trb",
    summary="Trust-region behavior blending: exact bridge rollouts, sampled reverse KL at every token.",
    behavior="bridge",
    router=route_to_first,
    branches=(REVERSE_KL,),
)

SAKI = Method(
    name="saki",
    summary="Bridge rollouts; accepted tokens get sampled reverse KL, corrections the teacher's top token (Eq. 16).",
    behavior="bridge",
    router=route_corrections,
    branches=(REVERSE_KL, TEACHER_MODE),
)

RANDOM_TM = Method(
    name="random_tm",
    summary="Control: as many teacher-mode updates a trajectory as saki, at uniformly random positions.",
    behavior="bridge",
    router=route_randomly,
    branches=(REVERSE_KL, TEACHER_MODE),
)

TV_WEIGHTED_TM = Method(
    name="tv_weighted_tm",
    summary="Control: as many teacher-mode updates a trajectory as saki, at positions drawn by TV(p, q).",
    behavior="bridge",
    router=route_by_tv,
    branches=(REVERSE_KL, TEACHER_MODE),
)

TEACHER_SAMPLED = Method(
    name="teacher_sampled",
    summary="As saki, with a draw from the teacher instead of its top token at corrections.",
    behavior="bridge",
    router=route_corrections,
    branches=(REVERSE_KL, TEACHER_SAMPLE),
)

ADVANTAGES: dict[str, Branch | VocabularyBranch] = {
    "log_ratio": REVERSE_KL,
    "vopd": CENTERED_REVERSE_KL,
    "power_opd": power(1.0),
}
"""What accepted tokens of saki may be trained on."""


def saki(advantage: str = "log_ratio") -> Method:
    """SAKI with a choice of what trains accepted tokens.

    Args:
        advantage: A key of :data:`ADVANTAGES`; ``log_ratio`` is the paper's.

    Raises:
        ValueError: If the advantage is unknown.
    """
    if advantage not in ADVANTAGES:
        raise ValueError(f"advantage must be one of {', '.join(ADVANTAGES)}, got {advantage!r}")
    return replace(SAKI, branches=(ADVANTAGES[advantage], TEACHER_MODE))


def exopd(exopd_lambda: float = 1.25) -> Method:
    """ExOPD (G-OPD): student rollouts, the reward extrapolated beyond the teacher, away from the initial student.

    Args:
        exopd_lambda: lambda; 1 is opd.

    Raises:
        ValueError: If lambda is not a finite number.
    """
    if not math.isfinite(exopd_lambda):
        raise ValueError(f"exopd_lambda must be finite, got {exopd_lambda}")
    return Method(
        name="exopd",
        summary="Student rollouts; the log-ratio plus (lambda - 1) times that of teacher to initial student.",
        behavior="student",
        router=route_to_first,
        branches=(extrapolated(exopd_lambda),),
    )


def skd(top_k: int = 25, direction: str = "forward") -> Method:
    """Speculative knowledge distillation: the student proposes, the teacher's top k accept.

    Args:
        top_k: How many of the teacher's top tokens are accepted.
        direction: ``"forward"`` for KL(T || S), ``"reverse"`` for KL(S || T).

    Raises:
        ValueError: If a value is out of range.
    """
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if direction not in ("forward", "reverse"):
        raise ValueError(f"direction must be 'forward' or 'reverse', got {direction!r}")
    return Method(
        name="skd",
        summary="Student proposals outside the teacher's top k become teacher draws; full-vocabulary KL everywhere.",
        behavior="skd",
        router=route_to_first,
        branches=(FULL_FORWARD_KL if direction == "forward" else FULL_REVERSE_KL,),
        top_k=top_k,
    )
