"""``saki bench bridge``: saki's solver against bisections, and how exact each is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from saki.benchmarking.meters import wait_for
from saki.benchmarking.spread import spread
from saki.functional import bridge_log_ratio, normalized_log_probs, solve_bridge, solve_bridge_bisection

VOCABULARIES = (4096, 49_152, 152_064)
NUM_WAVES = 16


@dataclass(frozen=True)
class FullTensorBridge:
    """What bisections on whole tensors leave: everything that a coupling needs.

    Attributes:
        beta: [R] largest coefficient found feasible.
        kl: [R] KL(q||p), nats.
        tv: [R] TV(p, q).
        log_q: [R, V] the bridge.
    """

    beta: Tensor
    kl: Tensor
    tv: Tensor
    log_q: Tensor


@torch.no_grad()
def full_tensor_bisection(log_p: Tensor, log_t: Tensor, radius: float, num_waves: int = NUM_WAVES) -> FullTensorBridge:
    """The trust-region bridge by a fixed number of bisections on [R, V] tensors, as Appendix K.3 describes it.

    Each wave builds q for every row and reads KL(q||p) (Eq. 1-2); rows that have converged are masked and not left out,
    so that the host never waits. It is the plain way, to be compared with, and no part of the rollout.

    Args:
        log_p: [R, V] float32 student log-probs, finite.
        log_t: [R, V] float32 teacher log-probs, finite.
        radius: Trust-region radius, nats, above 0.
        num_waves: Halvings; beta is found to 2**-num_waves.
    """
    rows = log_p.shape[0]
    low, high = log_p.new_zeros(rows), log_p.new_ones(rows)
    _, kl_teacher = _geometric(log_p, log_t, high)
    converged = kl_teacher <= radius  # the teacher itself is feasible
    low = torch.where(converged, high, low)
    for _ in range(num_waves):
        middle = torch.where(converged, low, 0.5 * (low + high))
        _, kl = _geometric(log_p, log_t, middle)
        feasible = kl <= radius
        low = torch.where(~converged & feasible, middle, low)
        high = torch.where(~converged & ~feasible, middle, high)
        converged = converged | (high - low <= 2.0**-num_waves)
    log_q, kl = _geometric(log_p, log_t, low)
    tv = (log_p.exp() - log_q.exp()).clamp(min=0.0).sum(dim=-1)
    return FullTensorBridge(low, kl, tv, log_q)


def _geometric(log_p: Tensor, log_t: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """log q [R, V] at beta, and KL(q||p) [R]."""
    weight = beta.unsqueeze(-1)
    log_q = torch.log_softmax((1 - weight) * log_p + weight * log_t, dim=-1)
    return log_q, (log_q.exp() * (log_q - log_p)).sum(dim=-1)


def bridge_rows(rows: int, vocab: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Laws [R, V] float32 as of two related models: peaked student logits, and a teacher that differs by noise."""
    generator = torch.Generator().manual_seed(seed)
    student = 3.0 * torch.randn(rows, vocab, generator=generator)
    teacher = student + 1.5 * torch.randn(rows, vocab, generator=generator)
    return normalized_log_probs(student).to(device), normalized_log_probs(teacher).to(device)


def bench_bridge(
    vocabularies: Sequence[int] = VOCABULARIES,
    *,
    rows: tuple[int, int] = (8, 8),
    radius: float = 0.02,
    repeats: int = 5,
    compiled: bool = False,
    seed: int = 0,
    device: torch.device | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Time solvers in turn on float32 rows, and compare them with float64.

    Solvers: ``saki`` (compiled where asked for, and then ``saki_eager`` beside it), ``grouped_bisection`` (16 waves
    through saki's groups of rows) and ``full_tensor`` (16 waves on whole tensors). All give beta, KL and TV; only
    ``full_tensor`` has log q left.

    Args:
        vocabularies: Vocabulary sizes.
        rows: (rows, K) of a block of proposals.
        radius: Trust-region radius, nats.
        repeats: Timed runs of each solver, after one to warm up.
        compiled: Whether ``saki`` runs compiled passes.
        seed: Seed of the laws.
        device: By default the CPU.
        progress: Told what runs.

    Returns:
        ``{"vocab": {V: {"speedup", "max_abs_dbeta", "max_kl_excess", "ms_per_row", ...}}}``. ``speedup`` is the median
        over repeats of full_tensor's time over saki's; ``max_abs_dbeta`` is to the float64 solution; ``max_kl_excess``
        is the largest KL(q||p) - radius in nats, KL taken in float64, so that above 0 is a violation.
    """
    device = device or torch.device("cpu")
    say = progress or (lambda _: None)
    solvers: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "saki": partial(solve_bridge, radius=radius, compiled=compiled),
        "grouped_bisection": partial(solve_bridge_bisection, radius=radius, num_waves=NUM_WAVES, compiled=compiled),
        "full_tensor": partial(full_tensor_bisection, radius=radius),
    }
    if compiled:
        solvers["saki_eager"] = partial(solve_bridge, radius=radius)
    results = {}
    for vocab in vocabularies:
        log_p, log_t = bridge_rows(rows[0] * rows[1], vocab, seed, device)
        say(f"{vocab} ids: warm-up")
        solved = {name: solve(log_p, log_t) for name, solve in solvers.items()}
        seconds: dict[str, list[float]] = {name: [] for name in solvers}
        names = list(solvers)
        for repeat in range(repeats):
            say(f"{vocab} ids: repeat {repeat + 1} of {repeats}")
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                seconds[name].append(_timed(partial(solvers[name], log_p, log_t), device))
        results[str(vocab)] = _vocabulary_result(log_p, log_t, radius, solved, seconds)
    return {"rows": list(rows), "radius": radius, "compiled": compiled, "vocab": results}


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    wait_for(device)
    begin = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - begin


def _vocabulary_result(
    log_p: Tensor, log_t: Tensor, radius: float, solved: dict[str, Any], seconds: dict[str, list[float]]
) -> dict[str, Any]:
    rows = log_p.shape[0]
    exact_p, exact_t = (torch.log_softmax(value.double().cpu(), dim=-1) for value in (log_p, log_t))
    exact = solve_bridge(exact_p, exact_t, radius)
    per_solver = {}
    for name, bridge in solved.items():
        beta = bridge.beta.double().cpu()
        per_solver[name] = {
            "ms_per_row": 1000 * median(seconds[name]) / rows,
            "spread_ms_per_row": spread([1000 * each / rows for each in seconds[name]]),
            "max_abs_dbeta": float((beta - exact.beta).abs().max()),
            "max_kl_excess": float((_kl(exact_p, exact_t, beta) - radius).max()),
            "max_abs_dtv": float((bridge.tv.double().cpu() - exact.tv).abs().max()),
        }
    ratios = {
        name: median(full / own for full, own in zip(seconds["full_tensor"], seconds[name], strict=True))
        for name in seconds
    }
    own = per_solver["saki"]
    return {
        "speedup": ratios["saki"],
        "max_abs_dbeta": own["max_abs_dbeta"],
        "max_kl_excess": own["max_kl_excess"],
        "ms_per_row": own["ms_per_row"],
        "speedups": ratios,
        "solvers": per_solver,
    }


def _kl(log_p: Tensor, log_t: Tensor, beta: Tensor) -> Tensor:
    """KL(q_beta||p) [R] in float64, from its definition."""
    mixed = torch.logsumexp((1 - beta).unsqueeze(-1) * log_p + beta.unsqueeze(-1) * log_t, dim=-1)
    ratio = bridge_log_ratio(log_p, log_t, beta, mixed)
    return ((log_p + ratio).exp() * ratio).sum(dim=-1)
