"""Methods of the paper."""

from __future__ import annotations

from saki.methods.branches import REVERSE_KL, TEACHER_MODE
from saki.methods.record import Method
from saki.objectives import route_corrections, route_to_first

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
