"""Methods under trial: not registered, named as ``saki.methods.candidates:NAME``.

docs/methods.md lists them. ``COUPLED`` was one, and is :data:`saki.methods.beyond.FULL_COUPLED` since its claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from saki.functional import kl_divergence
from saki.methods.beyond import FULL_COUPLED
from saki.methods.branches import PROPOSAL_REVERSE_KL, WEIGHTED_TEACHER_MODE
from saki.methods.record import Branch, Method, VocabularyBranch
from saki.methods.vocabulary import COUPLED_KL, FULL_FORWARD_KL, FULL_REVERSE_KL, mixture
from saki.objectives import TokenTargets, log_ratio_advantage, route_corrections, route_to_first
from saki.types.request import BehaviorName


def mixed_kl(forward_share: float) -> VocabularyBranch:
    """(1 - w) KL(pi || T) + w KL(T || pi) over the whole vocabulary.

    Args:
        forward_share: w, in [0, 1].
    """

    def loss(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, None]:
        return mixture(policy, teacher, forward_share), None

    return VocabularyBranch("mixed_kl", loss)


def _both(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, None]:
    return kl_divergence(policy, teacher) + kl_divergence(teacher, policy), None


def _jensen_shannon(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, None]:
    possible = (policy > -torch.inf) | (teacher > -torch.inf)  # elsewhere logaddexp has no gradient
    safe_policy, safe_teacher = (torch.where(possible, law, 0.0) for law in (policy, teacher))
    middle = torch.logaddexp(safe_policy, safe_teacher) - math.log(2)
    return 0.5 * (kl_divergence(policy, middle) + kl_divergence(teacher, middle)), None


def _weighted_forward(
    policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None
) -> tuple[Tensor, Tensor]:
    committed = policy.gather(-1, targets.completion_ids.unsqueeze(-1)).squeeze(-1)
    weight, clamped = log_ratio_advantage(committed, targets.teacher_logprobs.to(committed.dtype), clip)
    return weight.clamp(min=0.0) * kl_divergence(teacher, policy), clamped & (weight > 0)


BOTH_KL = VocabularyBranch("both_kl", _both)
"""KL(pi || T) + KL(T || pi) over the whole vocabulary."""

JENSEN_SHANNON = VocabularyBranch("jensen_shannon", _jensen_shannon)
"""The mean of both laws' KL to their even mixture, over the whole vocabulary."""

WEIGHTED_FORWARD_KL = VocabularyBranch("weighted_forward_kl", _weighted_forward)
"""KL(T || pi) over the whole vocabulary, times the log-ratio of the committed token where that is positive."""

FORWARD_SHARE = 0.25
"""Share of KL(T || pi) in the mixed candidates."""

MIXED_KL = mixed_kl(FORWARD_SHARE)
"""3/4 KL(pi || T) + 1/4 KL(T || pi) over the whole vocabulary."""


def _at_corrections(name: str, what: str, branch: Branch | VocabularyBranch) -> Method:
    summary = f"As trb_full, with {what} at corrections."
    return Method(name, summary, "bridge", route_corrections, (FULL_REVERSE_KL, branch))


def _everywhere(name: str, what: str, behavior: BehaviorName, branch: VocabularyBranch) -> Method:
    summary = f"{'Bridge' if behavior == 'bridge' else 'Student'} rollouts; {what} at every token."
    return Method(name, summary, behavior, route_to_first, (branch,))


WEIGHTED_MODE = _at_corrections("full_weighted_mode", "the weighted teacher mode", WEIGHTED_TEACHER_MODE)
FORWARD = _at_corrections("full_forward", "full forward KL", FULL_FORWARD_KL)
WEIGHTED_FORWARD = _at_corrections("full_weighted_forward", "weighted full forward KL", WEIGHTED_FORWARD_KL)
BOTH = _at_corrections("full_both", "full reverse plus full forward KL", BOTH_KL)
MIXED = _everywhere("full_mixed", "three parts of full reverse KL and one of forward", "bridge", MIXED_KL)
JSD = _everywhere("full_jsd", "Jensen-Shannon divergence", "bridge", JENSEN_SHANNON)
OPD_MIXED = _everywhere("opd_mixed", "the loss of full_mixed", "student", MIXED_KL)
COUPLED = FULL_COUPLED
PROPOSAL = Method(
    name="trb_proposal",
    summary="Bridge rollouts; the loss of opd on the student's proposal at every token, kept or rejected.",
    behavior="bridge",
    router=route_to_first,
    branches=(PROPOSAL_REVERSE_KL,),
)
OPD_COUPLED = _everywhere("opd_coupled", "the loss of full_coupled", "student", COUPLED_KL)

CANDIDATES: Sequence[str] = (
    "WEIGHTED_MODE",
    "FORWARD",
    "WEIGHTED_FORWARD",
    "BOTH",
    "MIXED",
    "JSD",
    "OPD_MIXED",
    "OPD_COUPLED",
    "PROPOSAL",
)
"""Names of the candidates in this module."""
