"""The bridge in single precision, for rows without zeros: three kinds of passes over the vocabulary, eager or compiled.

Elements are float32, sums are accumulated in float64. With r centred by its mean under p, w = p expm1(b r), and
S_k = sum w r^k (of p r^k itself the centring leaves c_1 and V_0):

    A = log1p(S_0),  A' = (c_1 + S_1) / (1 + S_0),  A'' = (V_0 + S_2) / (1 + S_0) - A'^2,  KL = b A' - A.

The form with expm1 keeps KL to a relative 1e-5 down to a radius of 1e-5, where exp would lose it in the 1 of sum q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

MAX_LOG_RATIO = 60.0
"""Rows with a larger log T/p anywhere are left to double precision, since exp(b r) would overflow."""

LEAST_TEACHER = -200.0
"""Rows with a smaller log T are left to double precision: their log-ratios span too much for float32."""

NEAR_TEACHER = 1.05
"""Up to this multiple of the radius KL(T||p) is taken again, in a form that does not cancel."""

MIN_RADIUS = 1e-5
"""Smaller radii, in nats, are left to double precision."""

TARGET_MARGIN = 6e-5
"""The solver aims at radius * (1 - TARGET_MARGIN), so that rounding cannot lift KL above the radius."""

TOLERANCE = 2e-5
"""A row has converged when KL is within this relative distance of the aim."""

Solver = Callable[["SingleProblem"], tuple[Tensor, Tensor, Tensor]]


def _first(log_p: Tensor, log_t: Tensor) -> tuple[Tensor, ...]:
    """r = log T/p and p [R, V], and in float64 [R]: sum p, sum T, sum T r, sum p r."""
    r, p, t = log_t - log_p, log_p.exp(), log_t.exp()
    return r, p, _sum(p), _sum(t), _sum(t * r), _sum(p * r)


def _center(p: Tensor, r: Tensor, center: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r - center [R, V], and sum p r, sum p r^2 of it."""
    centred = r - center.float().unsqueeze(-1)
    weighted = p * centred
    return centred, _sum(weighted), _sum(weighted * centred)


def _moments(p: Tensor, r: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """S_0, S_1, S_2 [R] of w = p expm1(b r)."""
    weights = torch.expm1(r * beta.float().unsqueeze(-1)) * p
    once = weights * r
    return _sum(weights), _sum(once), _sum(once * r)


def _excess(p: Tensor, r: Tensor, beta: Tensor, log_partition: Tensor) -> Tensor:
    """sum [p - q]+ = -sum p min(expm1(b r - A), 0) [R]."""
    u = r * beta.float().unsqueeze(-1) - log_partition.float().unsqueeze(-1)
    return -_sum(p * torch.expm1(u).clamp(max=0.0))


def _sum(values: Tensor) -> Tensor:
    return values.sum(dim=-1, dtype=torch.float64)


class EagerPasses:
    """The passes one operation at a time, on buffers that are used again: for groups of rows that fit the cache."""

    def __init__(self, num_rows: int, vocab: int, device: torch.device) -> None:
        self._buffers = [torch.empty(num_rows, vocab, device=device) for _ in range(3)]

    def first(self, log_p: Tensor, log_t: Tensor) -> tuple[Tensor, ...]:
        """See :func:`_first`."""
        r, p, work = (buffer[: log_p.shape[0]] for buffer in self._buffers)
        torch.sub(log_t, log_p, out=r)
        torch.exp(log_p, out=p)
        torch.exp(log_t, out=work)
        total_t, total_p = _sum(work), _sum(p)
        teacher = _sum(work.mul_(r))
        return r, p, total_p, total_t, teacher, _sum(torch.mul(p, r, out=work))

    def center(self, p: Tensor, r: Tensor, center: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :func:`_center`."""
        work = self._buffers[2][: p.shape[0]]
        r.sub_(center.float().unsqueeze(-1))
        slope = _sum(torch.mul(p, r, out=work))
        return r, slope, _sum(work.mul_(r))

    def moments(self, p: Tensor, r: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :func:`_moments`."""
        work = torch.mul(r, beta.float().unsqueeze(-1), out=self._buffers[2][: p.shape[0]])
        zeroth = _sum(work.expm1_().mul_(p))
        first = _sum(work.mul_(r))
        return zeroth, first, _sum(work.mul_(r))

    def excess(self, p: Tensor, r: Tensor, beta: Tensor, log_partition: Tensor) -> Tensor:
        """See :func:`_excess`."""
        work = torch.mul(r, beta.float().unsqueeze(-1), out=self._buffers[2][: p.shape[0]])
        work.sub_(log_partition.float().unsqueeze(-1)).expm1_().clamp_(max=0.0)
        return -_sum(work.mul_(p))


class CompiledPasses:
    """The same passes, each fused into one loop by ``torch.compile`` (which needs a C++ compiler on a CPU)."""

    def __init__(self) -> None:
        self.first: Callable[..., Any] = torch.compile(_first, dynamic=True)
        self.center: Callable[..., Any] = torch.compile(_center, dynamic=True)
        self.moments: Callable[..., Any] = torch.compile(_moments, dynamic=True)
        self.excess: Callable[..., Any] = torch.compile(_excess, dynamic=True)


@cache
def compiled_passes() -> CompiledPasses:
    """The compiled passes, made at the first call of a process."""
    return CompiledPasses()


@dataclass(frozen=True)
class SingleProblem:
    """Rows between the end points, for a one-dimensional solver.

    Attributes:
        p: [R, V] float32 student probabilities.
        r: [R, V] float32 log T/p, centred by its mean under p.
        total: [R] sum p, 1 up to rounding.
        slope: [R] what the centring leaves of sum p r.
        square: [R] sum p r^2.
        radius: [R] nats.
        kl_teacher: [R] KL(T||p), above the radius.
        passes: How to run over the vocabulary.
    """

    p: Tensor
    r: Tensor
    total: Tensor
    slope: Tensor
    square: Tensor
    radius: Tensor
    kl_teacher: Tensor
    passes: EagerPasses | CompiledPasses

    rounding = TARGET_MARGIN
    margin = TARGET_MARGIN
    tolerance = TOLERANCE

    @property
    def variance(self) -> Tensor:
        """[R] Var_p r."""
        return self.square / self.total

    def select(self, rows: Tensor) -> SingleProblem:
        """The same problem for some rows."""
        chosen = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "passes"}
        return SingleProblem(**chosen, passes=self.passes)

    def moments(self, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """KL(q_b || p), A(b) of the centred r and A''(b), each [R]."""
        zeroth, first, second = self.passes.moments(self.p, self.r, beta)
        partition = 1 + zeroth / self.total
        log_partition = torch.log1p(zeroth / self.total)
        mean = (self.slope + first) / self.total / partition
        variance = (self.square + second) / self.total / partition - mean.square()
        return beta * mean - log_partition, log_partition, variance


def is_tame(log_p: Tensor, log_t: Tensor, radius: Tensor) -> Tensor:
    """[R] bool: rows that single precision takes. No zero, no NaN, no extreme ratio, no tiny radius."""
    # log T <= 0, so log T - log p above MAX_LOG_RATIO needs log p below its negative. A NaN compares as False.
    bounded = (log_p.amin(dim=-1) >= -MAX_LOG_RATIO) & (log_t.amin(dim=-1) >= LEAST_TEACHER)
    return bounded & (radius >= MIN_RADIUS)


def solve_tame_rows(
    log_p: Tensor, log_t: Tensor, radius: Tensor, solver: Solver, passes: EagerPasses | CompiledPasses
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """beta, A, KL and TV [R] float64 of rows that are :func:`is_tame`; see :func:`saki.functional.bridge.solve_bridge`.

    Args:
        log_p: [R, V] float32 student log-probs.
        log_t: [R, V] float32 teacher log-probs.
        radius: [R] float64 nats, above 0.
        solver: Solver of the rows between the end points.
        passes: How to run over the vocabulary.
    """
    r, p, total_p, total_t, teacher, mean = passes.first(log_p, log_t)
    center = mean / total_p
    # Of the laws as they are once normalised; float32 log-probs sum to 1 up to rounding only.
    log_total_p, log_total_t = total_p.log(), total_t.log()
    kl_teacher = teacher / total_t - log_total_t + log_total_p
    r, slope, square = passes.center(p, r, center)
    problem = SingleProblem(p, r, total_p, slope, square, radius, kl_teacher, passes)
    if bool((kl_teacher <= NEAR_TEACHER * radius).any()):
        # sum T log T/p cancels where T is close to p; the moments do not.
        kl_teacher = problem.moments(torch.ones_like(radius))[0]
        problem = replace(problem, kl_teacher=kl_teacher)
    # Within the margin of the radius the solver decides, so that rounding cannot select a T beyond it.
    at_teacher = kl_teacher <= radius * (1 - TARGET_MARGIN)
    open_rows = torch.nonzero(~at_teacher).flatten()
    beta = torch.ones_like(kl_teacher)
    # In terms of the centred r: q = T has A = log sum T - log sum p - center.
    log_partition = log_total_t - log_total_p - center
    kl = kl_teacher.clone()
    if open_rows.numel():
        every = open_rows.numel() == beta.numel()
        solved = solver(problem if every else problem.select(open_rows))
        for whole, part in zip((beta, kl, log_partition), solved, strict=True):
            whole[open_rows] = part
    tv = passes.excess(p, r, beta, log_partition) / total_p
    return beta, log_partition + beta * center, kl, tv
