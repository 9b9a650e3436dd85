"""The trust-region bridge between student and teacher (Eq. 1-2, Appendix B).

Letters, as in the paper: p student, T teacher, q bridge, b (beta) its coefficient. With r = log T - log p and
A(b) = log sum_v p(v) exp(b r(v)), sums over the common support C = {p > 0, T > 0}:

    log q_b = log p + b r - A(b),    KL(q_b || p) = b A'(b) - A(b),    d KL / d b = b A''(b) = b Var_q[r] >= 0.

KL is monotone in b, so the largest feasible b is unique; it is found by a safeguarded Newton step in log KL
against log b. One pass over the vocabulary a step gives the three sums that A, A' and A'' need. With r centred by
its mean under p, both b A' and A are of the size of KL, so float64 keeps KL to 1e-7 of itself down to a radius of 1e-8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from saki.functional.devices import reads_back
from saki.functional.single import EagerPasses, compiled_passes, is_tame, solve_tame_rows

TARGET_MARGIN = 2e-6
"""The solver aims at radius * (1 - TARGET_MARGIN), so that rounding cannot lift KL above the radius."""

TOLERANCE = 1e-6
"""A row has converged when KL is within this relative distance of the aim."""

MAX_STEPS = 60

DEVICE_STEPS = 16
"""Most steps on an accelerator; a row that has not converged keeps its best feasible beta."""

LOOK_EVERY = 4
"""Steps after which the host asks an accelerator whether all rows have converged. It waits for the answer, which costs
less than the passes over the vocabulary in float64 that are saved: most rows need 3 or 4 steps, hostile ones to 16."""

TEACHER_START = 0.95

CHUNK_ELEMENTS = {"cpu": 2**16, "cuda": 2**24}
"""Rows are taken in groups of about this many entries: on a CPU a group stays in the cache."""

COMPILED_ROWS = 256
"""Rows of a group in compiled passes, which keep nothing in the cache between them."""


Solver = Callable[[Any], tuple[Tensor, Tensor, Tensor]]
"""Takes a :class:`Problem`; gives the largest feasible beta of each row, and KL and A there, each [R]."""


class Problem(Protocol):
    """Rows between the end points, as a one-dimensional solver sees them. [R] float64 throughout.

    Attributes:
        rounding: How far, relative, KL as computed may lie below KL.
        margin: How far below the radius to aim, relative.
        tolerance: How near to the aim is near enough, relative.
    """

    rounding: float
    margin: float
    tolerance: float

    @property
    def radius(self) -> Tensor:
        """Trust-region radius, nats."""
        ...

    @property
    def kl_teacher(self) -> Tensor:
        """KL at beta = 1, above the radius."""
        ...

    @property
    def variance(self) -> Tensor:
        """Var_p r."""
        ...

    def moments(self, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """KL, A and A'' at beta."""
        ...


@dataclass(frozen=True)
class Bridge:
    """The bridge at each row, without full-vocabulary tensors. All fields [...] float64.

    Attributes:
        beta: Bridge coefficient in [0, 1]; 0 selects q = p, 1 selects q = T (on the common support).
        log_partition: A(beta); log q/p = beta (log T - log p) - log_partition.
        kl: KL(q||p) in nats.
        tv: TV(p, q) = sum [p - q]+, the correction probability (Eq. 8).
    """

    beta: Tensor
    log_partition: Tensor
    kl: Tensor
    tv: Tensor


def bridge_log_ratio(log_p: Tensor, log_t: Tensor, beta: Tensor, log_partition: Tensor) -> Tensor:
    """u = log q/p at some or all tokens (Eq. 1).

    0 where beta = 0, else -inf where q = 0 < p or p = 0; NaN where beta is.

    Args:
        log_p: [..., N] student log-probs of the tokens asked for (float64, normalised over the vocabulary).
        log_t: [..., N] teacher log-probs of the same tokens.
        beta: [...] bridge coefficient.
        log_partition: [...] A(beta).

    Returns:
        [..., N] float64. ``bridge_log_ratio(...) + log_p`` is log q.
    """
    beta = beta.unsqueeze(-1)
    impossible = torch.isneginf(log_p) | torch.isneginf(log_t)
    r = torch.where(impossible, torch.zeros_like(log_p), log_t - torch.where(impossible, log_t, log_p))
    u = beta * r - log_partition.unsqueeze(-1)
    u = torch.where(impossible, torch.full_like(u, -torch.inf), u)
    return torch.where(beta == 0, torch.zeros_like(u), u)


def solve_bridge(log_p: Tensor, log_t: Tensor, radius: float | Tensor, *, compiled: bool = False) -> Bridge:
    """Largest beta in [0, 1] with KL(q_beta || p) <= radius, row by row (Eq. 2).

    The result lies on the feasible side: KL never exceeds the radius, and falls short of it by at most 1e-5 of it (2e-4
    for float32 log-probs) unless an end point is selected. Rows that have converged are frozen. float64 log-probs are
    solved in float64; float32 ones in float32 with sums in float64 (:mod:`saki.functional.single`), but for rows with
    zeros, extreme ratios or a tiny radius, which go through float64.

    End points, all by selection and therefore exact:

    - radius 0, or no common support, or -log p(C) >= radius where C is smaller than the support of p:
      beta = 0, q = p;
    - KL(T_C || p) <= radius, T_C being T restricted to C and renormalised: beta = 1, q = T_C.

    Args:
        log_p: [..., V] student log-probs, float64 or float32, normalised (see ``numerics.normalized_log_probs``);
            -inf is allowed. The law meant is the renormalised one, since float32 sums to 1 up to rounding only.
        log_t: [..., V] teacher log-probs, likewise.
        radius: Trust-region radius in nats, >= 0, a number or [...].
        compiled: Whether passes over float32 rows are fused by ``torch.compile`` (a C++ compiler is needed on a CPU,
            and the first call takes tens of seconds).

    Returns:
        The bridge of each row, detached. A row with a NaN in p or T has NaN in every field.

    Raises:
        ValueError: If shapes or dtypes differ, or a radius is negative or not finite.

    Example:
        >>> import torch
        >>> p, t = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.9, 0.1]).double()
        >>> bridge = solve_bridge(p.log(), t.log(), 0.02)
        >>> bool(bridge.kl <= 0.02), round(float(bridge.beta), 3)
        (True, 0.182)
    """
    return solve_by(log_p, log_t, radius, _newton, compiled)


@torch.no_grad()
def solve_by(log_p: Tensor, log_t: Tensor, radius: float | Tensor, solver: Solver, compiled: bool = False) -> Bridge:
    """Check the input, and solve it in groups of rows by a given solver of the rows between the end points.

    Args:
        log_p: [..., V] student log-probs.
        log_t: [..., V] teacher log-probs.
        radius: A number or [...], nats.
        solver: Solver of a problem in which no end point is selected.
        compiled: Whether float32 rows go through compiled passes.
    """
    if log_p.shape != log_t.shape or log_p.dim() == 0:
        raise ValueError(
            f"student and teacher log-probs must share a shape [..., V], got {tuple(log_p.shape)} "
            f"and {tuple(log_t.shape)}"
        )
    if log_p.dtype != log_t.dtype or log_p.dtype not in (torch.float64, torch.float32):
        raise ValueError(
            f"student and teacher log-probs must both be float32 or float64, got {log_p.dtype} and {log_t.dtype}; "
            "use numerics.normalized_log_probs"
        )
    shape, vocab = log_p.shape[:-1], log_p.shape[-1]
    _check_radius(radius)
    radius = torch.as_tensor(radius, dtype=torch.float64, device=log_p.device).expand(shape).reshape(-1)
    size = max(1, CHUNK_ELEMENTS.get(log_p.device.type, CHUNK_ELEMENTS["cuda"]) // vocab)
    rows = log_p.reshape(-1, vocab), log_t.reshape(-1, vocab), radius
    solve_rows: Callable[[Tensor, Tensor, Tensor], Bridge]
    if log_p.dtype == torch.float64:
        solve_rows = partial(_solve_rows, solver=solver)
    elif reads_back(log_p.device):
        solve_rows = _SinglePrecision(vocab, size, log_p.device, solver, compiled)
        size = COMPILED_ROWS if compiled else size
    else:
        # Which rows single precision takes would have to be read back; accelerators are fast enough at float64.
        solve_rows = partial(_solve_renormalised, solver=solver)
    parts = [solve_rows(*group) for group in zip(*(value.split(size) for value in rows), strict=True)]
    return _join(parts, shape)


def _check_radius(radius: float | Tensor) -> None:
    if isinstance(radius, Tensor):
        good = bool((torch.isfinite(radius) & (radius >= 0)).all())
    else:
        good = 0 <= radius < math.inf
    if not good:
        raise ValueError("trust-region radius must be finite and >= 0 at every row")


def _join(parts: list[Bridge], shape: torch.Size) -> Bridge:
    return Bridge(
        *(torch.cat([getattr(part, field.name) for part in parts]).reshape(shape) for field in fields(Bridge))
    )


class _SinglePrecision:
    """Solves groups of float32 rows: the tame ones in single precision, the rest in double."""

    def __init__(self, vocab: int, size: int, device: torch.device, solver: Solver, compiled: bool) -> None:
        self.passes = compiled_passes() if compiled else EagerPasses(size, vocab, device)
        self.solver = solver

    def __call__(self, log_p: Tensor, log_t: Tensor, radius: Tensor) -> Bridge:
        tame = is_tame(log_p, log_t, radius)
        if bool(tame.all()):
            return self._tame(log_p, log_t, radius)
        bridge = _solve_renormalised(log_p, log_t, radius, self.solver)
        if not bool(tame.any()):
            return bridge
        # A row's numbers do not depend on its neighbours: tame rows take the single path here as well.
        rows = torch.nonzero(tame).flatten()
        part = self._tame(log_p[rows], log_t[rows], radius[rows])
        for field in fields(Bridge):
            getattr(bridge, field.name)[rows] = getattr(part, field.name)
        return bridge

    def _tame(self, log_p: Tensor, log_t: Tensor, radius: Tensor) -> Bridge:
        beta, log_partition, kl, tv = solve_tame_rows(log_p, log_t, radius, self.solver, self.passes)
        return Bridge(beta=beta, log_partition=log_partition, kl=kl.clamp(min=0.0), tv=tv)


def _solve_renormalised(log_p: Tensor, log_t: Tensor, radius: Tensor, solver: Solver) -> Bridge:
    """float32 rows in double precision: the bridge of the laws that they mean, for the log-probs as given."""
    p, t = log_p.double(), log_t.double()
    log_total_p, log_total_t = torch.logsumexp(p, dim=-1), torch.logsumexp(t, dim=-1)
    bridge = _solve_rows(p - log_total_p.unsqueeze(-1), t - log_total_t.unsqueeze(-1), radius, solver)
    # The log-probs as given sum to 1 up to their own rounding, and A belongs to them.
    shift = log_total_t - log_total_p
    shift = torch.where(torch.isfinite(shift) & (bridge.beta > 0), bridge.beta * shift, 0.0)
    return replace(bridge, log_partition=bridge.log_partition + shift)


@dataclass(frozen=True)
class BridgeProblem:
    """Rows ready for a one-dimensional solver.

    Attributes:
        log_p: [R, V] student log-probs on C, renormalised; -inf outside C.
        r: [R, V] log T/p centred by its mean under p, both on C; 0 outside C.
        radius: [R] nats.
        kl_teacher: [R] KL(q_1 || p), above the radius in the rows that a solver sees.
        cost: [R] -log p(C), nats: what KL is at beta = 0+. KL(q || p) = KL(q || p_C) + cost.
    """

    log_p: Tensor
    r: Tensor
    radius: Tensor
    kl_teacher: Tensor
    cost: Tensor

    def select(self, rows: Tensor) -> BridgeProblem:
        """The same problem for some rows."""
        return BridgeProblem(*(getattr(self, field.name)[rows] for field in fields(BridgeProblem)))

    rounding = 0.0
    margin = TARGET_MARGIN
    tolerance = TOLERANCE

    @property
    def variance(self) -> Tensor:
        """[R] Var_p r."""
        return (self.log_p.exp() * self.r.square()).sum(dim=-1)

    def moments(self, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """KL(q_b || p), A(b) of the centred r and A''(b), each [R]."""
        _, *moments = self.sums(beta)
        return moments[0], moments[1], moments[2]

    def sums(self, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The weights p e^{b r} [R, V], and then as :meth:`moments`."""
        weights = torch.addcmul(self.log_p, beta.unsqueeze(-1), self.r).exp_()
        weighted = weights * self.r
        total = weights.sum(dim=-1)
        mean = weighted.sum(dim=-1) / total
        square = weighted.mul_(self.r).sum(dim=-1) / total
        log_partition = total.log()
        return weights, beta * mean - log_partition + self.cost, log_partition, square - mean.square()


def _solve_rows(log_p: Tensor, log_t: Tensor, radius: Tensor, solver: Solver) -> Bridge:
    """One group of rows: end points by selection, the solver for the rest, and what the result measures."""
    p, t = log_p.exp(), log_t.exp()
    # 0 up to rounding; at a radius of 1e-8 that rounding would show in KL.
    log_total = p.sum(dim=-1).log()
    # The common case has no zero anywhere and needs no masks. A NaN is not a zero and passes through.
    looks = reads_back(log_p.device)
    has_zeros = not looks or bool(torch.isneginf(log_p).any() | torch.isneginf(log_t).any())
    if has_zeros:
        common = ~(torch.isneginf(log_p) | torch.isneginf(log_t))
        restricted_log_p, log_mass_p = _restrict(log_p, p, common)
        restricted_log_t, log_mass_t = _restrict(log_t, t, common)
        r = torch.where(common, restricted_log_t - restricted_log_p, 0.0)
        p_common, t_common = restricted_log_p.exp(), restricted_log_t.exp()
    else:
        r, restricted_log_p, p_common, t_common = log_t - log_p, log_p, p, t
        log_mass_p = log_mass_t = torch.zeros_like(radius)
    center = (p_common * r).sum(dim=-1)
    total_t = t_common.sum(dim=-1)
    cost = log_total - log_mass_p
    kl_teacher = (t_common * r).sum(dim=-1) / total_t - total_t.log() + cost
    at_student = (radius == 0) | torch.isneginf(log_mass_p) | ((log_mass_p < 0) & (cost >= radius))
    at_teacher = ~at_student & (kl_teacher <= radius)
    problem = BridgeProblem(restricted_log_p, r.sub_(center.unsqueeze(-1)), radius, kl_teacher, cost)
    if has_zeros:
        problem.r.masked_fill_(~common, 0.0)

    beta = at_teacher.to(torch.float64)
    is_open = ~(at_student | at_teacher)
    if looks:
        open_rows = torch.nonzero(is_open).flatten()
        if open_rows.numel():
            every = open_rows.numel() == beta.numel()
            beta[open_rows] = solver(problem if every else problem.select(open_rows))[0]
    else:
        beta = torch.where(is_open, solver(problem)[0], beta)
    weights, kl, log_partition, _ = problem.sums(beta)
    q = weights.mul_((-log_partition).exp().unsqueeze(-1))
    log_partition = log_partition + beta * (center + log_mass_t - log_mass_p) + log_mass_p
    if not looks or bool(at_teacher.any()):
        # By selection again: q = T_C, so that equal laws have TV 0 exactly.
        rows = at_teacher.unsqueeze(-1)
        q = torch.where(rows, t_common, q)
        log_partition = torch.where(at_teacher, log_mass_t, log_partition)
        kl = torch.where(at_teacher, kl_teacher, kl)
    tv = (p - q).clamp_(min=0.0).sum(dim=-1)
    student = beta == 0
    broken = torch.isnan(p.sum(dim=-1) + t.sum(dim=-1))
    return Bridge(
        beta=beta.masked_fill(broken, torch.nan),
        log_partition=log_partition.masked_fill(student, 0.0).masked_fill(broken, torch.nan),
        kl=kl.clamp(min=0.0).masked_fill(student, 0.0).masked_fill(broken, torch.nan),
        tv=tv.masked_fill(student, 0.0).masked_fill(broken, torch.nan),
    )


def _restrict(log_law: Tensor, law: Tensor, common: Tensor) -> tuple[Tensor, Tensor]:
    """The law on C renormalised [R, V], and the log of its mass there [R]; -inf without C.

    The mass is a log-sum-exp: where a law lives almost wholly outside C, its part in C may underflow.
    """
    restricted = torch.where(common, log_law, -torch.inf)
    # A mass that is whole is exactly 1, whatever rounding makes of the sum.
    whole = ~((law > 0) & ~common).any(dim=-1)
    log_mass = torch.where(whole, 0.0, torch.logsumexp(restricted, dim=-1))
    log_mass = torch.where(common.any(dim=-1), log_mass, -torch.inf)
    return restricted - torch.where(torch.isneginf(log_mass), 0.0, log_mass).unsqueeze(-1), log_mass


def _newton(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Safeguarded Newton in log KL against log beta; every row has its root in (0, 1). Returns beta, KL and A."""
    aim = problem.radius * (1 - problem.margin)
    slack = problem.radius * problem.tolerance
    one = torch.ones_like(aim)
    low, high = 0 * one, one.clone()
    result, done = low.clone(), torch.isnan(problem.kl_teacher)
    # Rows at either end are here where the host cannot leave them out; nobody takes what becomes of them.
    idle = ~(problem.kl_teacher > aim) | (problem.radius == 0)
    result_kl, result_a = low.clone(), low.clone()
    # b0 = sqrt(2 radius / Var_p r) near the student, b1 = sqrt(radius / KL(T || p)) near the teacher.
    variance = problem.variance
    near_student, near_teacher = (2 * aim / variance).sqrt(), (aim / problem.kl_teacher).sqrt()
    beta = torch.where(near_teacher >= TEACHER_START, near_teacher, (near_student * near_teacher).sqrt())
    beta = torch.where(torch.isfinite(beta), beta, 0.5 * one).clamp(min=1e-12, max=1 - 1e-12)
    last_error = torch.full_like(aim, torch.inf)
    looks = reads_back(aim.device)
    for step in range(1, 1 + (MAX_STEPS if looks else DEVICE_STEPS)):
        kl, log_partition, variance = problem.moments(beta)
        # An overflow far out gives no number; such a beta is not feasible.
        feasible = kl <= aim
        better = ~done & (kl <= aim + slack) & (beta > result)
        result, result_kl = torch.where(better, beta, result), torch.where(better, kl, result_kl)
        result_a = torch.where(better, log_partition, result_a)
        done = done | ((kl - aim).abs() <= slack)
        if bool(done.all()) if looks else step % LOOK_EVERY == 0 and bool((done | idle).all()):
            break
        low = torch.where(feasible, torch.maximum(low, beta), low)
        high = torch.where(feasible, high, torch.minimum(high, beta))
        error = kl.log() - aim.log()
        newton = beta * (-error * kl / (beta.square() * variance)).exp()
        # Bisect when Newton leaves the bracket, and when it creeps along a flat shoulder of KL.
        trusted = (newton > low) & (newton < high) & torch.isfinite(newton) & (error.abs() < 0.5 * last_error)
        middle = torch.where(low > 0, (low * high).sqrt(), 0.25 * high)
        middle = torch.where(2 * low > high, 0.5 * (low + high), middle)
        beta = torch.where(done, beta, torch.where(trusted, newton, middle))
        last_error = torch.where(trusted, error.abs(), torch.full_like(error, torch.inf))
    return result, result_kl, result_a
