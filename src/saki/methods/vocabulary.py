"""Branches that need both models' laws over the whole vocabulary."""

from __future__ import annotations

from torch import Tensor

from saki.functional import kl_divergence, total_variation, truncated_kl
from saki.methods.record import VocabularyBranch
from saki.objectives import TokenTargets, log_ratio_advantage, mean_log_ratio, reverse_kl_loss
from saki.types import check_number


def _full_reverse_kl(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, None]:
    return kl_divergence(policy, teacher), None


def _full_forward_kl(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, None]:
    return kl_divergence(teacher, policy), None


def _centered(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor]:
    logprobs = _of_committed(policy, targets)
    ratio, clamped = log_ratio_advantage(logprobs, targets.teacher_logprobs.to(logprobs.dtype), clip)
    return -(ratio - mean_log_ratio(policy, teacher, clip)) * logprobs, clamped


def truncated_forward_kl(top_k: int) -> VocabularyBranch:
    """1/k sum T (log T - log pi) over the teacher's top k tokens, or all where there are fewer.

    Raises:
        ValueError: If k is no whole number of at least 1.
    """
    check_number("top_k", top_k, least=1, whole=True)

    def loss(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, None]:
        return truncated_kl(teacher, policy, top_k) / min(top_k, teacher.shape[-1]), None

    return VocabularyBranch("truncated_forward_kl", loss)


def reverse_and_forward_kl(forward_weight: float, top_k: int) -> VocabularyBranch:
    """Sampled reverse KL plus a weight times KL(T || pi), T cut to its top k tokens and made to sum to 1 over them.

    Raises:
        ValueError: If the weight is negative, or k no whole number of at least 1.
    """
    check_number("forward_weight", forward_weight, least=0)
    check_number("top_k", top_k, least=1, whole=True)

    def loss(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, Tensor]:
        teacher_logprobs = targets.teacher_logprobs.to(policy.dtype)
        sampled, clamped = reverse_kl_loss(_of_committed(policy, targets), teacher_logprobs, clip)
        return sampled + forward_weight * truncated_kl(teacher, policy, top_k, renormalize=True), clamped

    return VocabularyBranch("reverse_and_forward_kl", loss)


def mixture(policy: Tensor, teacher: Tensor, forward_share: float | Tensor) -> Tensor:
    """(1 - w) KL(pi || T) + w KL(T || pi) over the whole vocabulary, [N] nats.

    Args:
        policy: [N, V] log-probs, with gradient.
        teacher: [N, V] log-probs.
        forward_share: w in [0, 1], one for all or [N].
    """
    reverse, forward = kl_divergence(policy, teacher), kl_divergence(teacher, policy)
    return (1 - forward_share) * reverse + forward_share * forward


def _coupled(policy: Tensor, teacher: Tensor, targets: TokenTargets, clip: float | None) -> tuple[Tensor, None]:
    return mixture(policy, teacher, total_variation(policy.detach(), teacher)), None


def _of_committed(policy: Tensor, targets: TokenTargets) -> Tensor:
    return policy.gather(-1, targets.completion_ids.unsqueeze(-1)).squeeze(-1)


FULL_REVERSE_KL = VocabularyBranch("full_reverse_kl", _full_reverse_kl)
"""KL(pi || T) over the whole vocabulary, with its exact gradient (Eq. 25)."""

FULL_FORWARD_KL = VocabularyBranch("full_forward_kl", _full_forward_kl)
"""KL(T || pi) over the whole vocabulary."""

CENTERED_REVERSE_KL = VocabularyBranch("centered_reverse_kl", _centered)
"""Sampled reverse KL with the baseline E_{y~p}[log T(y) - log p(y)], which is -KL(p || T) but for the clip."""

COUPLED_KL = VocabularyBranch("coupled_kl", _coupled)
"""(1 - TV) KL(pi || T) + TV KL(T || pi) over the whole vocabulary, TV = sg[TV(pi, T)].

TV is the probability that a maximal coupling of pi with T rejects the proposal, so this is the routing of SAKI with
q = T, in expectation over the coupling: reverse KL where the proposal is kept, forward KL where the teacher corrects.
"""
