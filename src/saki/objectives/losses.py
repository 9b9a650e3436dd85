"""Token losses. Each takes the policy's log-prob of its target token and returns one value a token, in nats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenTargets:
    """What the losses know of N valid tokens beside the policy.

    Attributes:
        completion_ids: [N] int64, committed tokens y.
        teacher_mode_ids: [N] int64, argmax of T.
        teacher_logprobs: [N] nats, log T(y).
        student_logprobs: [N] nats, draft-time log p(y).
    """

    completion_ids: Tensor
    teacher_mode_ids: Tensor
    teacher_logprobs: Tensor
    student_logprobs: Tensor

    def select(self, index: Tensor) -> TokenTargets:
        """The targets of some tokens."""
        return TokenTargets(
            self.completion_ids[index],
            self.teacher_mode_ids[index],
            self.teacher_logprobs[index],
            self.student_logprobs[index],
        )


def log_ratio_advantage(policy_logprobs: Tensor, teacher_logprobs: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """A = -sg[log p(y) - log T(y)] (Eq. 13, 26, 33), clamped to [-clip, clip].

    log p is the trainer's own recomputed log-prob. With clip None nothing is clamped.

    Returns:
        [N] detached advantages, and [N] bool: True where the clamp was active.
    """
    advantage = (teacher_logprobs - policy_logprobs).detach()
    if clip is None:
        return advantage, torch.zeros_like(advantage, dtype=torch.bool)
    return advantage.clamp(-clip, clip), advantage.abs() > clip


def reverse_kl_loss(policy_logprobs: Tensor, teacher_logprobs: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """L_RKL = -A log pi(y) (Eq. 12, 34), the sampled reverse-KL loss.

    Args:
        policy_logprobs: [N] log pi(y), with gradient.
        teacher_logprobs: [N] log T(y).
        clip: Bound on |A| in nats, or None.

    Returns:
        [N] losses and [N] bool, where the advantage was clamped. A teacher log-prob of -inf gives A = -clip.

    Raises:
        ValueError: If clip is not positive.
    """
    if clip is not None and clip <= 0:
        raise ValueError(f"advantage_clip must be positive or None, got {clip}")
    advantage, clamped = log_ratio_advantage(policy_logprobs, teacher_logprobs, clip)
    return -advantage * policy_logprobs, clamped


def teacher_mode_loss(policy_mode_logprobs: Tensor) -> Tensor:
    """L_TM = -log pi(v*) (Eq. 15), likelihood of the teacher's top token.

    Args:
        policy_mode_logprobs: [N] log pi(v*), with gradient.

    Returns:
        [N] losses.
    """
    return -policy_mode_logprobs
