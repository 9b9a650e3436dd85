"""Speculative knowledge distillation's rollout: the teacher's top k accept, the teacher itself corrects."""

from __future__ import annotations

import torch
from torch import Tensor

from saki.functional import Bridge, RowKeys, draw_teacher_samples, kl_divergence, total_variation
from saki.functional.devices import reads_back
from saki.rollout.verifier import VerifiedBlock, modes, take, verify_block
from saki.types import RolloutRequest


def verify_requested(
    request: RolloutRequest,
    log_p: Tensor,
    log_t: Tensor,
    proposals: Tensor,
    keys: RowKeys,
    positions: Tensor,
    compiled: bool = False,
) -> VerifiedBlock:
    """Verify a block under the behavior that a request asks for: the bridge or SKD."""
    if request.behavior == "skd":
        assert request.top_k is not None
        return verify_skd_block(log_p, log_t, proposals, keys, positions, request.top_k)
    radius, solver = request.trust_region_radius, request.solver
    return verify_block(log_p, log_t, proposals, keys, positions, radius, solver, compiled)


def verify_skd_block(
    log_p: Tensor, log_t: Tensor, proposals: Tensor, keys: RowKeys, positions: Tensor, top_k: int
) -> VerifiedBlock:
    """Accept proposals among the teacher's top k, and replace the first other one by a draw from the teacher.

    With A the teacher's top k tokens (and those tied with the k-th), the sampled law is

        q(v) = p(v) [v in A] + p(not A) T(v).

    No bridge is involved: ``beta`` is 0, while ``kl`` and ``tv`` are KL(q||p) and TV(p, q) of this q. The correction
    probability is p(not A), which is above TV(p, q) since a teacher's draw may fall where q = p would have put it.

    Args:
        log_p: [R, K, V] log-probs of the student that drew the proposals.
        log_t: [R, K, V] log-probs of the teacher at the same prefixes.
        proposals: [R, K] int64, z.
        keys: Identity of the R rows.
        positions: [R, K] absolute response positions.
        top_k: k, at least 1; from V on every proposal is accepted.
    """
    num_rows, width, _ = log_p.shape
    every = torch.arange(num_rows, device=log_p.device)
    unusable = torch.isnan(log_p[..., 0]) | torch.isnan(log_t[..., 0])
    inside = log_t >= log_t.topk(min(top_k, log_t.shape[-1]), dim=-1).values[..., -1:]
    accepted = inside.gather(-1, proposals.unsqueeze(-1)).squeeze(-1) & ~unusable
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)
    at = num_accepted.clamp(max=width - 1)
    rejected = num_accepted < width
    broken = rejected & unusable[every, at]

    tokens = proposals.clone()
    corrections = torch.zeros_like(accepted)
    drawn = rejected & ~broken
    rows = torch.nonzero(drawn).flatten() if reads_back(log_p.device) else every
    where = at[rows]
    draws = draw_teacher_samples(log_t[rows, where], keys.select(rows), positions[rows, where])
    tokens[rows, where] = torch.where(drawn[rows], draws, proposals[rows, where])
    corrections[rows, where] = drawn[rows]

    teacher_modes = modes(log_t)
    log_q = _behavior(log_p, log_t, inside)
    zero = torch.zeros_like(log_q[..., 0], dtype=torch.float64)
    kl, tv = kl_divergence(log_q, log_p).double(), total_variation(log_p, log_q).double()
    return VerifiedBlock(
        counts=torch.where(rejected & ~broken, num_accepted + 1, num_accepted),
        tokens=tokens,
        corrections=corrections,
        student_logprobs=take(log_p, tokens),
        behavior_logprobs=take(log_q, tokens),
        teacher_logprobs=take(log_t, tokens),
        teacher_mode_ids=teacher_modes,
        bridge=Bridge(beta=zero, log_partition=zero, kl=kl, tv=tv),
        acceptance=accepted.double(),
        proposal_logprobs=take(log_p, proposals),
        proposal_teacher_logprobs=take(log_t, proposals),
        mode_student_logprobs=take(log_p, teacher_modes),
        mode_teacher_logprobs=take(log_t, teacher_modes),
        broken=broken,
        num_empty_residuals=torch.zeros((), dtype=torch.long, device=log_p.device),
        num_solved=0,
    )


def _behavior(log_p: Tensor, log_t: Tensor, inside: Tensor) -> Tensor:
    """log q of every token, [R, K, V]."""
    kept = log_p.masked_fill(~inside, -torch.inf)
    refused = log_p.masked_fill(inside, -torch.inf).logsumexp(dim=-1, keepdim=True)
    return torch.logaddexp(kept, refused + log_t)
