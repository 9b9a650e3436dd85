"""Branches that methods are made of."""

from __future__ import annotations

from torch import Tensor

from saki.methods.record import Branch
from saki.objectives import TokenTargets, reverse_kl_loss, teacher_mode_loss


def _committed_token(targets: TokenTargets) -> Tensor:
    return targets.completion_ids


def _teacher_mode(targets: TokenTargets) -> Tensor:
    return targets.teacher_mode_ids


def _reverse_kl(logprobs: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor | None]:
    return reverse_kl_loss(logprobs, targets.teacher_logprobs, clip)


def _teacher_mode_likelihood(
    logprobs: Tensor, targets: TokenTargets, clip: float | None
) -> tuple[Tensor, Tensor | None]:
    return teacher_mode_loss(logprobs), None


REVERSE_KL = Branch("reverse_kl", _committed_token, _reverse_kl)
"""Sampled reverse KL on the committed token (Eq. 12)."""

TEACHER_MODE = Branch("teacher_mode", _teacher_mode, _teacher_mode_likelihood)
"""Likelihood of the teacher's top token (Eq. 15)."""
