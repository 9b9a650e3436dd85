"""Token losses. Each takes the policy's log-prob of its target token and returns one value a token, in nats."""

from __future__ import annotations

import torch
from torch import Tensor


def log_ratio_advantage(policy_logprobs: Tensor, teacher_logprobs: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """A = -sg[log p(y) - log T(y)] (Eq. 13, 26, 33), clamped to [-clip, clip].

    log p is the trainer's own recomputed log-prob. With clip None nothing is clamped.

    Returns:
        [N] detached advantages, and [N] bool: True where the clamp was active.
    """
    return clamp_advantage((teacher_logprobs - policy_logprobs).detach(), clip)


def clamp_advantage(advantage: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Clamp detached advantages to [-clip, clip].

    Args:
        advantage: [N].
        clip: Bound, or None for no clamp.

    Returns:
        [N] advantages, and [N] bool: True where the clamp was active.

    Raises:
        ValueError: If clip is not positive.
    """
    if clip is None:
        return advantage, torch.zeros_like(advantage, dtype=torch.bool)
    if clip <= 0:
        raise ValueError(f"advantage_clip must be positive or None, got {clip}")
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


def weighted_mode_loss(
    policy_mode_logprobs: Tensor, policy_logprobs: Tensor, teacher_logprobs: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """w L_TM with w = sg[max(log T(y) - log p(y), 0)]: the correction keeps the weight that the log-ratio had.

    Args:
        policy_mode_logprobs: [N] log pi(v*), with gradient.
        policy_logprobs: [N] log p(y) of the committed token.
        teacher_logprobs: [N] log T(y).
        clip: Bound on w in nats, or None.

    Returns:
        [N] losses and [N] bool, where the weight was clamped.
    """
    weight, clamped = log_ratio_advantage(policy_logprobs, teacher_logprobs, clip)
    return weight.clamp(min=0.0) * teacher_mode_loss(policy_mode_logprobs), clamped & (weight > 0)
