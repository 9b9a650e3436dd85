"""The trust-region bridge between student and teacher (Eq. 1-2, Appendix B).

Letters, as in the paper: p student, T teacher, q bridge, b (beta) its coefficient. With r = log T - log p and
A(b) = log sum_v p(v) exp(b r(v)):

    log q_b = log p + b r - A(b),    KL(q_b || p) = b A'(b) - A(b),    d KL / d b = b Var_q[r] >= 0.

KL is monotone in b, so the largest feasible b is unique; it is found by a safeguarded Newton step in log KL
against log b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saki.functional.numerics import excess_entropy

TARGET_MARGIN = 2e-6
"""The solver aims at radius * (1 - TARGET_MARGIN), so that rounding cannot lift KL above the radius."""

TOLERANCE = 1e-6
"""A row has converged when KL is within this relative distance of the aim."""

MAX_STEPS = 60
TEACHER_START = 0.95


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
    """u = log q/p at some or all tokens (Eq. 1): 0 where beta = 0, else -inf where q = 0 < p or p = 0; NaN if beta is.

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


@torch.no_grad()
def solve_bridge(log_p: Tensor, log_t: Tensor, radius: float | Tensor) -> Bridge:
    """Largest beta in [0, 1] with KL(q_beta || p) <= radius, row by row (Eq. 2).

    The result lies on the feasible side: KL never exceeds the radius, and falls short of it by at most
    1e-5 of it unless an end point is selected. The arithmetic is float64; rows that have converged are frozen.

    End points, all by selection and therefore exact:

    - radius 0, or no common support, or -log p(C) >= radius where C = {p > 0, T > 0} is smaller than the
      support of p: beta = 0, q = p;
    - KL(T_C || p) <= radius, T_C being T restricted to C and renormalised: beta = 1, q = T_C.

    Args:
        log_p: [..., V] student log-probs, float64, normalised (see ``numerics.normalized_log_probs``);
            -inf is allowed.
        log_t: [..., V] teacher log-probs, likewise.
        radius: Trust-region radius in nats, >= 0, a number or [...].

    Returns:
        The bridge of each row. A row with a NaN in p or T has NaN in every field.

    Raises:
        ValueError: If shapes or dtypes differ, or a radius is negative or not finite.

    Example:
        >>> import torch
        >>> p, t = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.9, 0.1]).double()
        >>> bridge = solve_bridge(p.log(), t.log(), 0.02)
        >>> bool(bridge.kl <= 0.02), round(float(bridge.beta), 3)
        (True, 0.182)
    """
    problem = BridgeProblem.prepare(log_p, log_t, radius)
    return problem.finish(_newton(problem))


@dataclass(frozen=True)
class BridgeProblem:
    """Rows brought to the common support C, ready for a one-dimensional solver.

    Attributes:
        shape: Leading shape of the rows.
        log_p: [R, V] student log-probs.
        log_t: [R, V] teacher log-probs.
        log_p_common: [R, V] log of p restricted to C and renormalised; -inf outside C.
        r: [R, V] log T_C/p_C centred by its mean under p_C; 0 outside C.
        center: [R] that mean, E_{p_C} log T_C/p_C.
        log_mass_p: [R] log p(C).
        log_mass_t: [R] log T(C).
        radius: [R] radius in nats.
        budget: [R] radius + log p(C), what KL(q || p_C) may use.
        kl_teacher: [R] KL(T_C || p_C).
        at_student: [R] bool, q = p by selection.
        at_teacher: [R] bool, q = T_C by selection.
    """

    shape: torch.Size
    log_p: Tensor
    log_t: Tensor
    log_p_common: Tensor
    r: Tensor
    center: Tensor
    log_mass_p: Tensor
    log_mass_t: Tensor
    radius: Tensor
    budget: Tensor
    kl_teacher: Tensor
    at_student: Tensor
    at_teacher: Tensor

    @staticmethod
    def prepare(log_p: Tensor, log_t: Tensor, radius: float | Tensor) -> BridgeProblem:
        """Check the input, restrict both laws to C and find the rows that an end point settles."""
        if log_p.shape != log_t.shape or log_p.dim() == 0:
            raise ValueError(
                f"student and teacher log-probs must share a shape [..., V], got {tuple(log_p.shape)} "
                f"and {tuple(log_t.shape)}"
            )
        if log_p.dtype != torch.float64 or log_t.dtype != torch.float64:
            raise ValueError(
                f"student and teacher log-probs must be float64, got {log_p.dtype} and {log_t.dtype}; "
                "use numerics.normalized_log_probs"
            )
        shape, vocab = log_p.shape[:-1], log_p.shape[-1]
        log_p, log_t = log_p.reshape(-1, vocab), log_t.reshape(-1, vocab)
        radius = torch.as_tensor(radius, dtype=torch.float64, device=log_p.device).expand(shape).reshape(-1)
        if not bool((torch.isfinite(radius) & (radius >= 0)).all()):
            raise ValueError("trust-region radius must be finite and >= 0 at every row")

        common = (log_p > -torch.inf) & (log_t > -torch.inf)
        full_support = (common | (log_p == -torch.inf)).all(dim=-1)
        zero = torch.zeros((), dtype=torch.float64, device=log_p.device)
        outside_p = torch.where(common, zero, log_p.exp()).sum(dim=-1)
        outside_t = torch.where(common, zero, log_t.exp()).sum(dim=-1)
        # p(C) from the smaller side: 1 - p(outside) is exact where C holds nearly everything.
        log_mass_p = torch.where(outside_p < 0.5, torch.log1p(-outside_p.clamp(max=0.75)), _masked_lse(log_p, common))
        log_mass_p = torch.where(full_support, zero, log_mass_p)
        log_mass_t = torch.where(outside_t < 0.5, torch.log1p(-outside_t.clamp(max=0.75)), _masked_lse(log_t, common))
        budget = radius + log_mass_p
        at_student = (radius == 0) | ~common.any(dim=-1) | (~full_support & (budget <= 0))

        usable = common & ~at_student.unsqueeze(-1)
        log_p_common = torch.where(usable, log_p - log_mass_p.unsqueeze(-1), -torch.inf)
        log_t_common = torch.where(usable, log_t - log_mass_t.unsqueeze(-1), zero)
        r = torch.where(usable, log_t_common - torch.where(usable, log_p_common, zero), zero)
        p_common = log_p_common.exp()
        center = (p_common * r).sum(dim=-1)
        kl_teacher = (p_common * excess_entropy(r.clamp(max=1.0))).where(
            r <= 1.0, torch.where(usable, log_t_common.exp() * (r - 1.0) + p_common, zero)
        )
        kl_teacher = kl_teacher.sum(dim=-1).clamp(min=0.0)
        at_teacher = ~at_student & (kl_teacher <= budget)
        return BridgeProblem(
            shape=shape,
            log_p=log_p,
            log_t=log_t,
            log_p_common=log_p_common,
            r=torch.where(usable, r - center.unsqueeze(-1), zero),
            center=center,
            log_mass_p=log_mass_p,
            log_mass_t=log_mass_t,
            radius=radius,
            budget=budget,
            kl_teacher=kl_teacher,
            at_student=at_student,
            at_teacher=at_teacher,
        )

    def select(self, rows: Tensor) -> BridgeProblem:
        """The same problem for some rows, flattened."""
        picked = {name: getattr(self, name)[rows] for name in self.__dataclass_fields__ if name not in ("shape",)}
        return BridgeProblem(shape=torch.Size([int(rows.shape[0])]), **picked)

    def kl_and_variance(self, beta: Tensor) -> tuple[Tensor, Tensor]:
        """KL(q_beta || p_C) and Var_q[r] at [R] betas, from one pass over the centred rows."""
        p = self.log_p_common.exp()
        exponent = beta.unsqueeze(-1) * self.r
        log_partition = centred_log_partition(p, self.log_p_common, exponent)
        u = exponent - log_partition.unsqueeze(-1)
        q = (self.log_p_common + u).exp()
        kl = torch.where(u < 1.0, p * excess_entropy(u.clamp(max=1.0)), q * (u - 1.0) + p).sum(dim=-1)
        mean = (q * self.r).sum(dim=-1, keepdim=True)
        variance = (q * (self.r - mean).square()).sum(dim=-1)
        return kl, variance

    def finish(self, beta: Tensor) -> Bridge:
        """Put the end points back and compute A(beta), KL and TV from the result itself."""
        one = torch.ones_like(beta)
        beta = torch.where(self.at_student, 0 * one, torch.where(self.at_teacher, one, beta))
        p_common = self.log_p_common.exp()
        exponent = beta.unsqueeze(-1) * self.r
        centred = centred_log_partition(p_common, self.log_p_common, exponent)
        # Undo the centring and the restriction: A = log sum_C p^(1-b) T^b in terms of the given p and T.
        log_partition = centred + beta * self.center + (1 - beta) * self.log_mass_p + beta * self.log_mass_t
        log_partition = torch.where(self.at_teacher, self.log_mass_t, log_partition)
        log_partition = torch.where(self.at_student, 0 * one, log_partition)
        u = bridge_log_ratio(self.log_p, self.log_t, beta, log_partition)
        p = self.log_p.exp()
        possible = self.log_p > -torch.inf
        q = torch.where(possible, (self.log_p + u).exp(), 0.0)
        p_shrinks = torch.where(possible, p * -torch.expm1(u.clamp(max=0.0)), 0.0)
        kl_terms = torch.where(u < 1.0, p * excess_entropy(u.clamp(max=1.0)), q * (u - 1.0) + p)
        kl = torch.where(possible, kl_terms, 0.0).sum(dim=-1).clamp(min=0.0)
        tv = p_shrinks.sum(dim=-1)
        bad = torch.isnan(self.log_p).any(dim=-1) | torch.isnan(self.log_t).any(dim=-1)
        nan = torch.full_like(beta, torch.nan)
        fields = [torch.where(bad, nan, value).reshape(self.shape) for value in (beta, log_partition, kl, tv)]
        return Bridge(*fields)


def centred_log_partition(p: Tensor, log_p: Tensor, exponent: Tensor) -> Tensor:
    """log sum p exp(exponent), through log1p(sum p expm1(.)) where every |exponent| < 1 (SPEC: small radii).

    Args:
        p: [R, V] probabilities that sum to one.
        log_p: [R, V] their logs.
        exponent: [R, V].

    Returns:
        [R] float64.
    """
    small = (exponent.abs().amax(dim=-1) < 1.0).unsqueeze(-1)
    near = torch.log1p((p * torch.expm1(torch.where(small, exponent, 0.0))).sum(dim=-1))
    if bool(small.all()):
        return near
    far = torch.logsumexp(log_p + exponent, dim=-1)
    return torch.where(small.squeeze(-1), near, far)


def _masked_lse(log_x: Tensor, mask: Tensor) -> Tensor:
    return torch.logsumexp(torch.where(mask, log_x, -torch.inf), dim=-1)


def unsettled_rows(problem: BridgeProblem) -> Tensor:
    """Indices of the rows that need a solver: neither end point was selected."""
    return torch.nonzero(~(problem.at_student | problem.at_teacher)).flatten()


def solve_unsettled(problem: BridgeProblem, solver: Callable[[BridgeProblem], Tensor]) -> Tensor:
    """Apply a solver to the rows that need one; the others get 0."""
    beta = torch.zeros_like(problem.budget)
    rows = unsettled_rows(problem)
    if rows.numel():
        beta[rows] = solver(problem.select(rows))
    return beta


def _newton(problem: BridgeProblem) -> Tensor:
    return solve_unsettled(problem, _newton_rows)


def _newton_rows(problem: BridgeProblem) -> Tensor:
    """Safeguarded Newton in log KL against log beta; every row has its root in (0, 1)."""
    aim = problem.budget * (1 - TARGET_MARGIN)
    slack = problem.budget * TOLERANCE
    one = torch.ones_like(aim)
    _, variance_at_student = problem.kl_and_variance(0 * one)
    start_student = (2 * aim / variance_at_student).sqrt()
    start_teacher = (aim / problem.kl_teacher).sqrt()
    beta = torch.where(start_teacher >= TEACHER_START, start_teacher, (start_student * start_teacher).sqrt())
    beta = torch.where(torch.isfinite(beta), beta, 0.5 * one).clamp(min=1e-12, max=1 - 1e-12)
    low, high = 0 * one, one.clone()
    result, done = low.clone(), torch.zeros_like(aim, dtype=torch.bool)
    last_error = torch.full_like(aim, torch.inf)
    for _ in range(MAX_STEPS):
        kl, variance = problem.kl_and_variance(beta)
        result = torch.where(~done & (kl <= aim + slack), torch.maximum(result, beta), result)
        done = done | ((kl - aim).abs() <= slack)
        if bool(done.all()):
            break
        low = torch.where(kl <= aim, torch.maximum(low, beta), low)
        high = torch.where(kl > aim, torch.minimum(high, beta), high)
        error = kl.log() - aim.log()
        newton = beta * (-error * kl / (beta.square() * variance)).exp()
        # Bisect when Newton leaves the bracket, and when it creeps along a flat shoulder of KL.
        trusted = (newton > low) & (newton < high) & torch.isfinite(newton) & (error.abs() < 0.5 * last_error)
        middle = torch.where(low > 0, (low * high).sqrt(), 0.25 * high)
        middle = torch.where(2 * low > high, 0.5 * (low + high), middle)
        beta = torch.where(done, beta, torch.where(trusted, newton, middle))
        last_error = torch.where(trusted, error.abs(), torch.full_like(error, torch.inf))
    return result
