"""What each committed position should have been, from a plain forward of the whole text in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saki.functional import kl_divergence, normalized_log_probs
from saki.types import RolloutBatch


@dataclass(frozen=True)
class RowLaws:
    """One row's exact laws at its n valid positions. [n, V] float64 unless said otherwise.

    Attributes:
        log_p: Student.
        log_t: Teacher.
        log_ratio: u = log q/p for q made of the *recorded* beta [n]; whether that beta is the right one is a
            question of its own (KL at the radius, see ``checks.check_records``).
        log_q: Bridge, -inf where impossible.
        kl: [n] KL(q||p) of that bridge, nats.
        kl_teacher: [n] KL(T_C||p), T on the common support.
    """

    log_p: Tensor
    log_t: Tensor
    log_ratio: Tensor
    log_q: Tensor
    kl: Tensor
    kl_teacher: Tensor


@torch.no_grad()
def plain_log_probs(model: Any, prompt: list[int], completion: list[int], vocab_size: int) -> Tensor:
    """[n, V] float64 log-probs of each completion position, by one forward without any cache."""
    device = next(model.parameters()).device
    ids = torch.tensor([prompt + completion], device=device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(completion) + 1).logits[0, :-1, :vocab_size]
    return normalized_log_probs(logits).cpu()


def row_laws(log_p: Tensor, log_t: Tensor, beta: Tensor) -> RowLaws:
    """Eq. 1 written down once more, apart from ``saki.functional.bridge``.

    Args:
        log_p: [n, V] float64.
        log_t: [n, V] float64.
        beta: [n] recorded coefficients.
    """
    common = torch.isfinite(log_p) & torch.isfinite(log_t)
    weights = torch.where(common, (1 - beta.unsqueeze(1)) * log_p + beta.unsqueeze(1) * log_t, -torch.inf)
    log_q = torch.log_softmax(weights, dim=-1)
    log_q = torch.where(beta.unsqueeze(1) == 0, log_p, log_q)
    teacher = torch.log_softmax(torch.where(common, log_t, -torch.inf), dim=-1)
    ratio = torch.where(torch.isfinite(log_p), log_q - torch.where(torch.isfinite(log_p), log_p, 0.0), -torch.inf)
    return RowLaws(log_p, log_t, ratio, log_q, kl_divergence(log_q, log_p), kl_divergence(teacher, log_p))


def rank_uniforms(probabilities: Tensor, order: Tensor, tokens: Tensor, noise: Tensor) -> Tensor:
    """Randomised probability integral transform: uniform on (0, 1) if each token comes from its law.

    U = P(order > order(token)) + V P(order = order(token)), V uniform.

    Args:
        probabilities: [n, V], each row sums to 1.
        order: [n, V] what to sort by, descending.
        tokens: [n] drawn ids.
        noise: [n] uniforms V, independent of the tokens.

    Returns:
        [n] float64.
    """
    at = order.gather(1, tokens.unsqueeze(1))
    above = torch.where(order > at, probabilities, 0.0).sum(dim=1)
    ties = torch.where(order == at, probabilities, 0.0).sum(dim=1)
    return (above + noise * ties).clamp(0.0, 1.0)


def valid_rows(batch: RolloutBatch) -> list[int]:
    """Rows with at least one valid position."""
    return [row for row in range(len(batch)) if bool(batch.response_mask[row].any())]
