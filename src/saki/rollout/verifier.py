"""One block verified: bridge, coupling and first rejection for K proposals a row (3.5, Appendix I)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saki.functional import (
    Bridge,
    RowKeys,
    Stream,
    accept_proposals,
    acceptance_probability,
    bridge_log_ratio,
    draw_residual,
    keyed_uniforms,
    solve_bridge,
    solve_bridge_bisection,
)
from saki.types.request import SolverName


@dataclass(frozen=True)
class VerifiedBlock:
    """What a block of K proposals becomes. [R, K] unless said otherwise.

    Attributes:
        counts: [R] int64, positions before and at the first rejection (K without one); 0 where the first
            position is not a number.
        tokens: Committed ids: the proposals, and the residual draw at the first rejection. Positions from
            ``counts`` on mean nothing.
        corrections: bool, True at the residual draw.
        student_logprobs: log p of ``tokens``.
        behavior_logprobs: log q of ``tokens``.
        teacher_logprobs: log T of ``tokens``.
        teacher_mode_ids: argmax of T.
        bridge: Bridge of every position.
        acceptance: Acceptance probability of the proposals.
        broken: [R] bool, True where position ``counts`` is NaN in one of the models.
        num_empty_residuals: Rejections where no residual weight was positive; the proposal was kept.
    """

    counts: Tensor
    tokens: Tensor
    corrections: Tensor
    student_logprobs: Tensor
    behavior_logprobs: Tensor
    teacher_logprobs: Tensor
    teacher_mode_ids: Tensor
    bridge: Bridge
    acceptance: Tensor
    broken: Tensor
    num_empty_residuals: int


def verify_block(
    log_p: Tensor,
    log_t: Tensor,
    proposals: Tensor,
    keys: RowKeys,
    positions: Tensor,
    radius: float,
    solver: SolverName = "newton",
) -> VerifiedBlock:
    """Couple K proposals a row with the bridge and stop each row at its first rejection.

    Up to the first rejection the proposal prefix is the true prefix, so each decision is the one that
    token-wise coupling would take; the decision at a position never reads a later one.

    Args:
        log_p: [R, K, V] float64 log-probs of the student that drew the proposals.
        log_t: [R, K, V] float64 log-probs of the teacher at the same prefixes.
        proposals: [R, K] int64, z.
        keys: Identity of the R rows.
        positions: [R, K] absolute response positions.
        radius: Trust-region radius in nats, above 0.
        solver: ``"newton"`` or ``"bisection"``.
    """
    num_rows, width, _ = log_p.shape
    solve = solve_bridge if solver == "newton" else solve_bridge_bisection
    bridge = solve(log_p, log_t, radius)
    log_p_z, log_t_z = take(log_p, proposals), take(log_t, proposals)
    log_ratio_z = token_log_ratio(log_p_z, log_t_z, bridge)

    # Eq. 83, and the first rejection.
    uniforms = keyed_uniforms(keys, positions, Stream.ACCEPT).squeeze(-1)
    accepted = accept_proposals(log_ratio_z, uniforms)
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)
    at = num_accepted.clamp(max=width - 1)
    every = torch.arange(num_rows, device=log_p.device)
    not_a_number = torch.isnan(bridge.beta)[every, at]
    rejected = num_accepted < width

    tokens = proposals.clone()
    corrections = torch.zeros_like(accepted)
    num_empty = 0
    rows = torch.nonzero(rejected & ~not_a_number).flatten()
    if rows.numel():
        where = at[rows]
        row_log_p = log_p[rows, where]
        u = bridge_log_ratio(row_log_p, log_t[rows, where], bridge.beta[rows, where], bridge.log_partition[rows, where])
        draws, has_weight = draw_residual(row_log_p, u, keys.select(rows), positions[rows, where])
        num_empty = int((~has_weight).sum())
        rows, where, draws = rows[has_weight], where[has_weight], draws[has_weight]
        tokens[rows, where] = draws
        corrections[rows, where] = True

    log_p_y, log_t_y = take(log_p, tokens), take(log_t, tokens)
    counts = torch.where(rejected, num_accepted + 1, num_accepted)
    broken = rejected & not_a_number
    return VerifiedBlock(
        counts=torch.where(broken, num_accepted, counts),
        tokens=tokens,
        corrections=corrections,
        student_logprobs=log_p_y,
        behavior_logprobs=log_p_y + token_log_ratio(log_p_y, log_t_y, bridge),
        teacher_logprobs=log_t_y,
        teacher_mode_ids=log_t.argmax(dim=-1),
        bridge=bridge,
        acceptance=acceptance_probability(log_ratio_z),
        broken=broken,
        num_empty_residuals=num_empty,
    )


def take(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Entries of [..., V] at [...] ids."""
    return log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def token_log_ratio(log_p_token: Tensor, log_t_token: Tensor, bridge: Bridge) -> Tensor:
    """u = log q/p at one token a position, from its two log-probs."""
    u = bridge_log_ratio(log_p_token.unsqueeze(-1), log_t_token.unsqueeze(-1), bridge.beta, bridge.log_partition)
    return u.squeeze(-1)
