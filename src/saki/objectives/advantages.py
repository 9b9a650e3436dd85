"""Advantages of a sampled token y beside the paper's log-ratio. Detached, in nats unless said otherwise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saki.objectives.losses import clamp_advantage


def extrapolated_advantage(
    policy_logprobs: Tensor, teacher_logprobs: Tensor, reference_logprobs: Tensor, factor: float
) -> Tensor:
    """A = -(log p - log T) + (lambda - 1)(log T - log ref), the reward extrapolation of G-OPD.

    With lambda = 1 it is the paper's log-ratio (Eq. 13) to the bit, also where a log-prob is -inf.

    Args:
        policy_logprobs: [N] log p(y).
        teacher_logprobs: [N] log T(y).
        reference_logprobs: [N] log-prob of y under the initial student.
        factor: lambda.

    Returns:
        [N], unclamped.
    """
    log_ratio = (teacher_logprobs - policy_logprobs).detach()
    if factor == 1.0:
        return log_ratio
    return log_ratio + (factor - 1.0) * (teacher_logprobs - reference_logprobs)


def power_advantage(policy_logprobs: Tensor, teacher_logprobs: Tensor, power: float) -> Tensor:
    """A = (T(y)^a - p(y)^a) / a, the Box-Cox form of the log-ratio: bounded by 1/a, of the same sign.

    a -> 0 is log T - log p, and a = 0 selects it.

    Args:
        policy_logprobs: [N] log p(y).
        teacher_logprobs: [N] log T(y).
        power: a, at least 0.

    Returns:
        [N], without a unit.

    Raises:
        ValueError: If the power is negative or not finite.
    """
    if not (math.isfinite(power) and power >= 0):
        raise ValueError(f"power must be finite and >= 0, got {power}")
    policy, teacher = policy_logprobs.detach(), teacher_logprobs.detach()
    if power == 0:
        return teacher - policy
    return (torch.expm1(power * teacher) - torch.expm1(power * policy)) / power


def mean_log_ratio(policy: Tensor, teacher: Tensor, clip: float | None) -> Tensor:
    """E_{y~p}[log T(y) - log p(y)], each log-ratio clamped to [-clip, clip]: -KL(p || T) where the clamp is not met.

    Args:
        policy: [N, V] log p.
        teacher: [N, V] log T.
        clip: Bound, or None for no clamp; then it is -inf where T is 0 and p is not.

    Returns:
        [N] nats, detached.

    Raises:
        ValueError: If clip is not positive.
    """
    policy, teacher = policy.detach(), teacher.detach()
    possible = policy > -torch.inf
    ratio, _ = clamp_advantage(teacher - torch.where(possible, policy, 0.0), clip)
    return torch.where(possible, policy.exp() * ratio, 0.0).sum(dim=-1)
