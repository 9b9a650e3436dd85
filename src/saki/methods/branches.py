"""Branches that methods are made of: those that need the policy's log-prob of one token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saki.methods.record import Branch
from saki.objectives import (
    Fact,
    TokenTargets,
    clamp_advantage,
    extrapolated_advantage,
    power_advantage,
    reverse_kl_loss,
    teacher_mode_loss,
    weighted_mode_loss,
)


def _committed_token(targets: TokenTargets) -> Tensor:
    return targets.completion_ids


def _teacher_mode(targets: TokenTargets) -> Tensor:
    return targets.teacher_mode_ids


def _proposal(targets: TokenTargets) -> Tensor:
    assert targets.proposal_ids is not None
    return targets.proposal_ids


def _teacher_sample(targets: TokenTargets) -> Tensor:
    assert targets.teacher_sample_ids is not None
    return targets.teacher_sample_ids


def _reverse_kl(logprobs: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor | None]:
    return reverse_kl_loss(logprobs, targets.teacher_logprobs, clip)


def _proposal_reverse_kl(logprobs: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor | None]:
    assert targets.proposal_teacher_logprobs is not None
    return reverse_kl_loss(logprobs, targets.proposal_teacher_logprobs, clip)


def _likelihood(logprobs: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor | None]:
    return teacher_mode_loss(logprobs), None


def _weighted_mode(logprobs: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor | None]:
    assert targets.policy_logprobs is not None
    return weighted_mode_loss(logprobs, targets.policy_logprobs, targets.teacher_logprobs, clip)


REVERSE_KL = Branch("reverse_kl", _committed_token, _reverse_kl)
"""Sampled reverse KL on the committed token (Eq. 12)."""

PROPOSAL_REVERSE_KL = Branch("proposal_reverse_kl", _proposal, _proposal_reverse_kl)
"""Sampled reverse KL on the student's proposal, kept or rejected: a draw from p at a guided prefix, too."""

TEACHER_MODE = Branch("teacher_mode", _teacher_mode, _likelihood)
"""Likelihood of the teacher's top token (Eq. 15)."""

TEACHER_SAMPLE = Branch("teacher_sample", _teacher_sample, _likelihood, frozenset({"teacher_sample_ids"}))
"""Likelihood of a draw from the teacher (Appendix F)."""

WEIGHTED_TEACHER_MODE = Branch("weighted_teacher_mode", _teacher_mode, _weighted_mode)
"""Likelihood of the teacher's top token, times the log-ratio of the committed token where that is positive."""


def policy_gradient(
    name: str, advantage: Callable[[Tensor, TokenTargets], Tensor], needs: frozenset[Fact] = frozenset()
) -> Branch:
    """A branch with the loss -A log pi(y) on the committed token.

    Args:
        name: Name in metrics.
        advantage: (log p(y) [N] detached, targets) -> A [N]; the trainer's clip is applied to it.
        needs: Facts that the advantage reads.
    """

    def loss(logprobs: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor]:
        value, clamped = clamp_advantage(advantage(logprobs.detach(), targets), clip)
        return -value * logprobs, clamped

    return Branch(name, _committed_token, loss, needs)


def extrapolated(factor: float) -> Branch:
    """Policy gradient with :func:`saki.objectives.extrapolated_advantage`."""

    def advantage(logprobs: Tensor, targets: TokenTargets) -> Tensor:
        assert targets.reference_logprobs is not None
        return extrapolated_advantage(logprobs, targets.teacher_logprobs, targets.reference_logprobs, factor)

    return policy_gradient("extrapolated", advantage, frozenset({"reference_logprobs"}))


def power(exponent: float) -> Branch:
    """Policy gradient with :func:`saki.objectives.power_advantage`."""
    return policy_gradient(
        "power", lambda logprobs, targets: power_advantage(logprobs, targets.teacher_logprobs, exponent)
    )


def fixed(name: str, advantage: float) -> Branch:
    """Policy gradient with the same advantage at every token; 0 trains none."""
    return policy_gradient(name, lambda logprobs, targets: torch.full_like(logprobs, advantage))
