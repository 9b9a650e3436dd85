"""One block verified: bridge, coupling and first rejection for K proposals a row (3.5, Appendix I)."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from functools import partial

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
    screen_proposals,
    solve_bridge,
    solve_bridge_bisection,
)
from saki.functional.devices import reads_back
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
        bridge: Bridge of every committed position; NaN where it was not solved for.
        acceptance: Acceptance probability of the proposals.
        proposal_logprobs: log p of the proposals.
        proposal_teacher_logprobs: log T of the proposals.
        mode_student_logprobs: log p of ``teacher_mode_ids``.
        mode_teacher_logprobs: log T of ``teacher_mode_ids``.
        broken: [R] bool, True where position ``counts`` is NaN in one of the models.
        num_empty_residuals: [] int64, rejections where no residual weight was positive; the proposal was kept.
        num_solved: Positions whose bridge was solved for; discarded ones that were accepted without it are not.
        bridge_seconds: Wall seconds of the solver (on a GPU those of its launch).
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
    proposal_logprobs: Tensor
    proposal_teacher_logprobs: Tensor
    mode_student_logprobs: Tensor
    mode_teacher_logprobs: Tensor
    broken: Tensor
    num_empty_residuals: Tensor
    num_solved: int
    bridge_seconds: float = 0.0


def verify_block(
    log_p: Tensor,
    log_t: Tensor,
    proposals: Tensor,
    keys: RowKeys,
    positions: Tensor,
    radius: float,
    solver: SolverName = "newton",
    compiled: bool = False,
) -> VerifiedBlock:
    """Couple K proposals a row with the bridge and stop each row at its first rejection.

    Up to the first rejection the proposal prefix is the true prefix, so each decision is the one that
    token-wise coupling would take; the decision at a position never reads a later one.

    Args:
        log_p: [R, K, V] log-probs of the student that drew the proposals.
        log_t: [R, K, V] log-probs of the teacher at the same prefixes.
        proposals: [R, K] int64, z.
        keys: Identity of the R rows.
        positions: [R, K] absolute response positions.
        radius: Trust-region radius in nats, above 0.
        solver: ``"newton"`` or ``"bisection"``.
        compiled: Whether the solver's passes are compiled.
    """
    num_rows, width, _ = log_p.shape
    log_p_z, log_t_z = take(log_p, proposals), take(log_t, proposals)
    uniforms = keyed_uniforms(keys, positions, Stream.ACCEPT).squeeze(-1)
    screened = screen_proposals(log_p_z, log_t_z, uniforms)
    bridges = LazyBridges(log_p, log_t, radius, solver, compiled)
    bridges.require(~screened)

    # Eq. 83, and the first rejection.
    accepted = screened | accept_proposals(token_log_ratio(log_p_z, log_t_z, bridges.bridge), uniforms)
    num_accepted = accepted.long().cumprod(dim=1).sum(dim=1)
    at = num_accepted.clamp(max=width - 1)
    every = torch.arange(num_rows, device=log_p.device)
    rejected = num_accepted < width
    # What is committed needs its record; what lies behind the first rejection is never solved for.
    bridges.require(torch.arange(width, device=log_p.device) <= num_accepted.unsqueeze(1))
    bridge = bridges.bridge
    not_a_number = torch.isnan(bridge.beta)[every, at]

    # The residual at each row's first rejection; where the host may look, for rows that have one.
    drawn = rejected & ~not_a_number
    rows = torch.nonzero(drawn).flatten() if reads_back(log_p.device) else every
    where = at[rows]
    row_log_p = log_p[rows, where]
    u = bridge_log_ratio(row_log_p, log_t[rows, where], bridge.beta[rows, where], bridge.log_partition[rows, where])
    draws, has_weight = draw_residual(row_log_p, u, keys.select(rows), positions[rows, where])
    replaced = drawn[rows] & has_weight
    tokens, corrections = proposals.clone(), torch.zeros_like(accepted)
    tokens[rows, where] = torch.where(replaced, draws, proposals[rows, where])
    corrections[rows, where] = replaced
    num_empty = (drawn[rows] & ~has_weight).sum()

    log_p_y, log_t_y = take(log_p, tokens), take(log_t, tokens)
    teacher_modes = modes(log_t)
    counts = torch.where(rejected, num_accepted + 1, num_accepted)
    broken = rejected & not_a_number
    return VerifiedBlock(
        counts=torch.where(broken, num_accepted, counts),
        tokens=tokens,
        corrections=corrections,
        student_logprobs=log_p_y,
        behavior_logprobs=log_p_y + token_log_ratio(log_p_y, log_t_y, bridge),
        teacher_logprobs=log_t_y,
        teacher_mode_ids=teacher_modes,
        bridge=bridge,
        acceptance=acceptance_probability(token_log_ratio(log_p_z, log_t_z, bridge)),
        proposal_logprobs=log_p_z,
        proposal_teacher_logprobs=log_t_z,
        mode_student_logprobs=take(log_p, teacher_modes),
        mode_teacher_logprobs=take(log_t, teacher_modes),
        broken=broken,
        num_empty_residuals=num_empty,
        num_solved=bridges.num_solved,
        bridge_seconds=bridges.seconds,
    )


class LazyBridges:
    """The bridges of a block [R, K], solved for where they are asked for, each once.

    On a CPU the rows asked for are gathered. On a GPU, where the host would have to wait to know them, all are
    solved.

    Args:
        log_p: [R, K, V] student log-probs.
        log_t: [R, K, V] teacher log-probs.
        radius: Trust-region radius, nats.
        solver: ``"newton"`` or ``"bisection"``.
        compiled: Whether the solver's passes are compiled.

    Attributes:
        bridge: What is known; NaN elsewhere.
        num_solved: Positions solved for.
        seconds: Wall seconds of the solver.
    """

    def __init__(self, log_p: Tensor, log_t: Tensor, radius: float, solver: SolverName, compiled: bool) -> None:
        self._log_p, self._log_t, self._radius = log_p, log_t, radius
        self._solve = partial(solve_bridge if solver == "newton" else solve_bridge_bisection, compiled=compiled)
        self.num_solved = 0
        shape = log_p.shape[:-1]
        self._solved = torch.zeros(shape, dtype=torch.bool, device=log_p.device)
        self.bridge = Bridge(*(log_p.new_full(shape, torch.nan, dtype=torch.float64) for _ in fields(Bridge)))
        begin = time.perf_counter()
        if not reads_back(log_p.device):
            self.bridge, self.num_solved = self._solve(log_p, log_t, radius), self._solved.numel()
        self.seconds = time.perf_counter() - begin

    def require(self, positions: Tensor) -> None:
        """Solve for these positions [R, K] bool, unless they are."""
        if self.num_solved == self._solved.numel():
            return
        missing = positions & ~self._solved
        index = missing.nonzero(as_tuple=True)
        count = index[0].numel()
        if count == 0:
            return
        begin = time.perf_counter()
        if count == self._solved.numel():
            self.bridge = self._solve(self._log_p, self._log_t, self._radius)
        else:
            part = self._solve(self._log_p[index], self._log_t[index], self._radius)
            for field in fields(Bridge):
                getattr(self.bridge, field.name)[index] = getattr(part, field.name)
        self._solved |= missing
        self.num_solved += count
        self.seconds += time.perf_counter() - begin


def modes(log_probs: Tensor) -> Tensor:
    """First argmax over the last axis, [...] int64; on a CPU by numpy, which is ten times faster at it."""
    if log_probs.device.type == "cpu":
        return torch.from_numpy(log_probs.numpy().argmax(axis=-1))
    return log_probs.argmax(dim=-1)


def take(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Entries of [..., V] at [...] ids; numbers come as float64."""
    entries = log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return entries.double() if entries.is_floating_point() else entries


def token_log_ratio(log_p_token: Tensor, log_t_token: Tensor, bridge: Bridge) -> Tensor:
    """u = log q/p at one token a position, from its two log-probs."""
    u = bridge_log_ratio(log_p_token.unsqueeze(-1), log_t_token.unsqueeze(-1), bridge.beta, bridge.log_partition)
    return u.squeeze(-1)
