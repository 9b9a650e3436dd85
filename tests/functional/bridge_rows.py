"""Hostile rows for the bridge, and what a result measures when nothing of it is taken on trust.

``python -m tests.functional.bridge_rows`` measures every row of :data:`TABLE` and prints one line a cell.

Measuring: from beta and log_partition alone comes u = log q/p at every token, and from u

    KL(q||p) = sum_v p (u e^u - expm1(u)),    since sum_v p e^u u = KL and sum_v p (e^u - 1) = 0,

a sum of non-negative terms: it does not cancel at small radii, and a small error d in log_partition moves it by d KL
only. u e^u - expm1(u) itself cancels near 0; there its power series sum_{k>=2} (k - 1)/k! u^k stands in.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from saki.functional import Bridge, bridge_log_ratio, normalized_log_probs, solve_bridge

RADII = (1e-8, 1e-6, 4e-4, 0.02, 0.1, 0.5, 3.0, 10.0)
"""Rows of a cell take these radii in turn, nats."""

SHORTFALL = 2e-4
"""How far below the radius KL may stay where 0 < beta < 1, relative."""

MARGIN = 3e-6
"""How far below the radius the Newton solver aims, its tolerance included, relative."""

ROUNDING = 1e-14
"""Absolute rounding of KL(T||p) = sum T (log T - log p), nats: log-probs carry an ulp of up to 4e-15 each."""

Pair = tuple[Tensor, Tensor]
Kind = Callable[[int, int, Tensor, torch.Generator], Pair]


def _normal(rows: int, vocab: int, g: torch.Generator) -> Tensor:
    return torch.randn(rows, vocab, generator=g, dtype=torch.float64)


def _uniform(rows: int, low: float, high: float, g: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(rows, 1, generator=g, dtype=torch.float64)


def _logits(rows: int, vocab: int, g: torch.Generator) -> Pair:
    scale = _uniform(rows, 0.1, 3.0, g)
    return _normal(rows, vocab, g) * scale, _normal(rows, vocab, g) * scale * 1.5


def _some(rows: int, vocab: int, g: torch.Generator, scores: Tensor) -> Tensor:
    """[rows, vocab] bool: between 1 and vocab - 1 entries of each row, by turns random ones and the lowest scores."""
    count = (1 + torch.rand(rows, 1, generator=g) * (vocab - 1)).long().clamp(max=vocab - 1)
    random = torch.rand(rows, vocab, generator=g, dtype=torch.float64)
    by_score = (torch.arange(rows) % 2 == 1).unsqueeze(1)
    return torch.where(by_score, scores, random).argsort(dim=1).argsort(dim=1) < count


def _smooth(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    return _logits(rows, vocab, g)


def _sharp(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    return 20 * _normal(rows, vocab, g), 20 * _normal(rows, vocab, g)


def _heavy_tails(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    rank = torch.rand(rows, vocab, generator=g).argsort(dim=1) + 1.0
    p = -_uniform(rows, 0.6, 2.0, g) * rank.double().log()
    # Cauchy noise: the log-ratio has no variance to speak of.
    noise = torch.tan(math.pi * (torch.rand(rows, vocab, generator=g, dtype=torch.float64) - 0.5)).clamp(-200, 200)
    return p, -_uniform(rows, 0.6, 2.0, g) * rank.double().log() + 0.3 * noise


def _disjoint(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    p, t = _logits(rows, vocab, g)
    mask = _some(rows, vocab, g, p)
    return p.masked_fill(mask, -math.inf), t.masked_fill(~mask, -math.inf)


def _teacher_zeros(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    p, t = _logits(rows, vocab, g)
    return p, t.masked_fill(_some(rows, vocab, g, p), -math.inf)


def _cheap_teacher_zeros(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    """T = 0 where p holds a mass m with -log(1 - m) between nothing and twice the radius: solved on C, or just not."""
    p, t = _logits(rows, vocab, g)
    mask = _some(rows, vocab, g, p)
    outside = -torch.expm1(-radius.unsqueeze(1) * _uniform(rows, 0.0, 2.0, g))
    log_p = torch.where(
        mask,
        torch.log_softmax(p.masked_fill(~mask, -math.inf), dim=1) + outside.log(),
        torch.log_softmax(p.masked_fill(mask, -math.inf), dim=1) + torch.log1p(-outside),
    )
    return log_p, t.masked_fill(mask, -math.inf)


def _student_zeros(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    p, t = _logits(rows, vocab, g)
    return p.masked_fill(_some(rows, vocab, g, t), -math.inf), t


def _both_zeros(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    p, t = _logits(rows, vocab, g)
    return p.masked_fill(_some(rows, vocab, g, t), -math.inf), t.masked_fill(_some(rows, vocab, g, p), -math.inf)


def _equal(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    p, _ = _logits(rows, vocab, g)
    return p, p.clone()


def _equal_up_to_rounding(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    """T = p up to a relative noise between one ulp of float64 and one of bfloat16."""
    p, _ = _logits(rows, vocab, g)
    return p, p * (1 + 10 ** _uniform(rows, -16.0, -2.5, g) * _normal(rows, vocab, g))


def _one_hot(rows: int, vocab: int, g: torch.Generator) -> Tensor:
    logits = torch.full((rows, vocab), -math.inf, dtype=torch.float64)
    return logits.scatter_(1, torch.randint(0, vocab, (rows, 1), generator=g), 0.0)


def _one_hot_student(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    return _one_hot(rows, vocab, g), _logits(rows, vocab, g)[1]


def _one_hot_teacher(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    return _logits(rows, vocab, g)[0], _one_hot(rows, vocab, g)


def _near_one_hot(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    """Nearly all mass on one token, the same one in half of the rows."""
    p, t = _logits(rows, vocab, g)
    at_p, at_t = (torch.randint(0, vocab, (rows, 1), generator=g) for _ in range(2))
    at_t = torch.where(torch.arange(rows).unsqueeze(1) % 2 == 0, at_p, at_t)
    return (
        p.scatter(1, at_p, _uniform(rows, 10.0, 60.0, g) + math.log(vocab)),
        t.scatter(1, at_t, _uniform(rows, 10.0, 60.0, g) + math.log(vocab)),
    )


def _tiny_masses(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    """Entries near 1e-300 in p, in T or in both, and sets where T lives almost wholly beside p."""
    p, t = _logits(rows, vocab, g)
    which = torch.arange(rows).unsqueeze(1) % 3
    low_p, low_t = _some(rows, vocab, g, t), _some(rows, vocab, g, p)
    depth = math.log(1e-300)
    return (
        torch.where(low_p & (which != 1), p + depth, p),
        torch.where(low_t & (which != 0), t + depth, t),
    )


def _underflow(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    """p and T meet only where the exponential of one of them is 0 in float64, yet its log-probs are finite."""
    p, t = _logits(rows, vocab, g)
    mask = _some(rows, vocab, g, p)
    student_side = (torch.arange(rows) % 3 == 0).unsqueeze(1)
    p = torch.where(student_side & ~mask, p - 800.0, torch.where(~student_side & mask, -math.inf, p))
    t = torch.where(student_side & mask, -math.inf, torch.where(~student_side & ~mask, t - 800.0, t))
    return p, t


def _float32(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    p, t = _logits(rows, vocab, g)
    return (2 * p).float(), (2 * t).float()


def _bfloat16(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    p, t = _logits(rows, vocab, g)
    return (2 * p).bfloat16(), (2 * p + t).bfloat16()


def _at_the_edge(rows: int, vocab: int, radius: Tensor, g: torch.Generator) -> Pair:
    """T on the boundary of the region: KL(T||p) is the radius, give or take the solver's own margin."""
    log_p, log_t = (normalized_log_probs(logits.double()) for logits in _logits(rows, vocab, g))
    return log_p, log_q(log_p, log_t, solve_bridge(log_p, log_t, radius * _uniform(rows, 1 - 1e-6, 1 + 4e-6, g)[:, 0]))


KINDS: dict[str, Kind] = {
    "smooth": _smooth,
    "sharp": _sharp,
    "heavy tails": _heavy_tails,
    "disjoint supports": _disjoint,
    "T with zeros": _teacher_zeros,
    "T with zeros near the budget": _cheap_teacher_zeros,
    "p with zeros": _student_zeros,
    "both with zeros": _both_zeros,
    "p = T": _equal,
    "p = T up to rounding": _equal_up_to_rounding,
    "one-hot p": _one_hot_student,
    "one-hot T": _one_hot_teacher,
    "near-one-hot": _near_one_hot,
    "masses of 1e-300": _tiny_masses,
    "masses that underflow": _underflow,
    "float32 logits": _float32,
    "bfloat16 logits": _bfloat16,
    "KL(T||p) at the radius": _at_the_edge,
}

ROWS = {2: 1600, 3: 1600, 7: 1600, 36: 1200, 257: 240, 4096: 64, 32_000: 32, 151_936: 16}
"""Rows of each kind, by vocabulary."""

TABLE = tuple((vocab, kind, rows) for vocab, rows in ROWS.items() for kind in KINDS)
"""Vocabulary, kind and rows of every cell."""


def make_rows(vocab: int, kind: str, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """log p and log T [rows, vocab], and the radius [rows] of a cell."""
    generator = torch.Generator().manual_seed(1000 * vocab + list(KINDS).index(kind))
    radius = torch.tensor(RADII, dtype=torch.float64).repeat(-(-rows // len(RADII)))[:rows]
    p, t = KINDS[kind](rows, vocab, radius, generator)
    return normalized_log_probs(p.double()), normalized_log_probs(t.double()), radius


def log_q(log_p: Tensor, log_t: Tensor, bridge: Bridge) -> Tensor:
    u = bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)
    return torch.where(log_p > -math.inf, log_p + u, -math.inf)


def accurate_kl(log_p: Tensor, u: Tensor) -> Tensor:
    """KL(q||p) from u = log q/p, without cancellation (see the module); terms with p = 0 are 0, with q = 0 are p."""
    small = u.abs() < 0.05
    x = torch.where(small, u, 0.0)
    # (k - 1) / k! for k = 9 .. 2, Horner: the next term is below 1e-17 of the sum.
    series = torch.zeros_like(x)
    for k in range(9, 1, -1):
        series = series * x + (k - 1) / math.factorial(k)
    series = series * x * x
    safe = torch.where(small | torch.isneginf(u), 1.0, u)
    # p e^u as one exponential: e^u alone overflows where p is tiny.
    q = (log_p + safe).exp()
    p = log_p.exp()
    large = q * safe - (q - p)
    terms = torch.where(small, p * series, torch.where(torch.isneginf(u), p, large))
    return torch.where(log_p > -math.inf, terms, 0.0).sum(dim=-1)


@dataclass(frozen=True)
class Measured:
    """What a cell's results measure. Rows where 0 < beta < 1 are the inner ones.

    Attributes:
        excess: Largest KL / radius - 1 of the inner rows.
        excess_teacher: Largest KL - radius over the rows with beta = 1, nats.
        shortfall: Largest 1 - KL / radius of the inner rows; 0 without one.
        normalisation: Largest |sum q - 1|.
        pinsker: Largest TV / sqrt(radius / 2).
        kl_error: Largest |reported KL - KL| / (radius + KL).
        tv_error: Largest |reported TV - TV|.
        end_points: Largest deviation of log q from log p (beta = 0) or from log T (beta = 1, T within the support of
            p), nats; 0 is exact.
        restricted_end_points: The same where T is renormalised on the support of p, which rounds.
        wrong_end: Rows that were given the wrong end point, or none where one is right.
        counts: Rows with beta = 0, inner ones, and with beta = 1.
    """

    excess: float
    excess_teacher: float
    shortfall: float
    normalisation: float
    pinsker: float
    kl_error: float
    tv_error: float
    end_points: float
    restricted_end_points: float
    wrong_end: int
    counts: tuple[int, int, int]


def _worst(values: Tensor) -> float:
    return float(values.max()) if values.numel() else -math.inf


def measure(log_p: Tensor, log_t: Tensor, radius: Tensor, bridge: Bridge) -> Measured:
    """Measure the bridges of rows [R, V] from ``beta`` and ``log_partition`` alone."""
    u = bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)
    kl = accurate_kl(log_p, u)
    q = torch.where(log_p > -math.inf, (log_p + u).exp(), 0.0)
    tv = 0.5 * (q - log_p.exp()).abs().sum(dim=1)
    beta = bridge.beta
    student, teacher = beta == 0, beta == 1
    inner = (beta > 0) & (beta < 1)
    assert bool((student | teacher | inner).all())

    # What the end points should be: the log-mass of p and of T on the common support, and KL(T_C || p) there.
    common = (log_p > -math.inf) & (log_t > -math.inf)
    mass_p = torch.logsumexp(log_p.masked_fill(~common, -math.inf), dim=1)
    mass_t = torch.logsumexp(log_t.masked_fill(~common, -math.inf), dim=1)
    no_overlap = ~common.any(dim=1)
    whole_p = ~((log_p > -math.inf) & ~common).any(dim=1)
    whole_t = ~((log_t > -math.inf) & ~common).any(dim=1)
    mass_p, mass_t = (
        torch.where(whole, 0.0, torch.where(no_overlap, -math.inf, mass))
        for whole, mass in ((whole_p, mass_p), (whole_t, mass_t))
    )
    safe_t = torch.where(no_overlap, 0.0, mass_t)
    target = torch.where(common, log_t - torch.where(common, log_p, 0.0), 0.0) - safe_t.unsqueeze(1)
    target = torch.where(common, target, -math.inf)
    kl_teacher = torch.where(no_overlap, math.inf, accurate_kl(log_p, target))
    must_be_student = (-mass_p > radius * (1 + 1e-12) + 1e-15) & (~whole_p | no_overlap)
    may_be_student = (-mass_p >= radius * (1 - MARGIN) - 1e-15) & (~whole_p | no_overlap)
    must_be_teacher = kl_teacher < radius * (1 - 1e-12) - ROUNDING
    may_be_teacher = kl_teacher <= radius * (1 + 1e-12) + ROUNDING
    wrong = (must_be_student & ~student) | (student & ~may_be_student)
    wrong |= (must_be_teacher & ~teacher & ~student) | (teacher & ~may_be_teacher)

    deviation = torch.where(teacher.unsqueeze(1) & common, u - target, 0.0).abs().amax(dim=1)
    deviation = torch.where(student, u.abs().amax(dim=1), deviation)
    exact = student | whole_t
    return Measured(
        excess=_worst((kl / radius - 1)[inner]),
        excess_teacher=_worst((kl - radius)[teacher]),
        shortfall=max(0.0, _worst((1 - kl / radius)[inner])),
        normalisation=_worst((q.sum(dim=1) - 1).abs()),
        pinsker=_worst(tv / (radius / 2).sqrt()),
        kl_error=_worst((bridge.kl - kl).abs() / (radius + kl)),
        tv_error=_worst((bridge.tv - tv).abs()),
        end_points=_worst(deviation[exact]),
        restricted_end_points=_worst(deviation[~exact]),
        wrong_end=int(wrong.sum()),
        counts=(int(student.sum()), int(inner.sum()), int(teacher.sum())),
    )


def measure_single(log_p: Tensor, log_t: Tensor, radius: Tensor, compiled: bool = False) -> Measured:
    """Solve rows in float32, and measure the result as the law that their renormalised float32 log-probs mean."""
    single_p, single_t = log_p.float(), log_t.float()
    bridge = solve_bridge(single_p, single_t, radius, compiled=compiled)
    totals = [torch.logsumexp(part.double(), dim=-1, keepdim=True) for part in (single_p, single_t)]
    exact_p, exact_t = single_p.double() - totals[0], single_t.double() - totals[1]
    # log_partition belongs to the log-probs as given; those of the exact laws are shifted.
    shift = torch.where(bridge.beta > 0, bridge.beta * (totals[1] - totals[0]).squeeze(-1), 0.0)
    return measure(exact_p, exact_t, radius, replace(bridge, log_partition=bridge.log_partition - shift))


def main() -> None:
    """Print the table, with a total for each vocabulary; ``float32`` as an argument measures single precision."""
    torch.set_num_threads(1)
    single = "float32" in sys.argv[1:]
    print(
        f"radii {', '.join(f'{radius:g}' for radius in RADII)} nats in turn; b=0, inner, b=1: rows by selected beta;\n"
        "excess: largest KL / radius - 1 of the inner rows; shortfall: largest 1 - KL / radius of them;\n"
        "edge: largest KL - radius where b = 1, nats; wrong: rows with the wrong end point, or none where one is right"
    )
    header = ("vocab", "kind", "rows", "b=0", "inner", "b=1", "excess", "shortfall", "edge", "|sum q-1|", "TV/bound")
    widths = (7, -28, 6, 6, 6, 6, 9, 9, 9, 9, 8)
    print(*(f"{h:>{w}}" if w > 0 else f"{h:<{-w}}" for h, w in zip(header, widths, strict=True)), "wrong")
    every: list[tuple[int, Measured]] = []
    for vocab in ROWS:
        cells = []
        for _, kind, rows in (cell for cell in TABLE if cell[0] == vocab):
            row = make_rows(vocab, kind, rows)
            cells.append((rows, measure_single(*row) if single else measure(*row, solve_bridge(*row))))
            _print_line(vocab, kind, *cells[-1])
        _print_line(vocab, "(all kinds)", *_together(cells))
        every += cells
    _print_line(0, "(all rows)", *_together(every))


def _together(cells: list[tuple[int, Measured]]) -> tuple[int, Measured]:
    """Counts added up, the worst of the rest."""
    values = {}
    for field in fields(Measured):
        each = [getattr(m, field.name) for _, m in cells]
        if field.name == "counts":
            values[field.name] = tuple(map(sum, zip(*each, strict=True)))
        else:
            values[field.name] = sum(each) if field.name == "wrong_end" else max(each)
    return sum(rows for rows, _ in cells), Measured(**values)


def _print_line(vocab: int, kind: str, rows: int, m: Measured) -> None:
    student, inner, teacher = m.counts
    print(
        f"{vocab or '':>7} {kind:<28} {rows:>6} {student:>6} {inner:>6} {teacher:>6} {m.excess:>9.1e} "
        f"{m.shortfall:>9.1e} {m.excess_teacher:>9.1e} {m.normalisation:>9.1e} {m.pinsker:>8.5f} {m.wrong_end:>5}"
    )


if __name__ == "__main__":
    main()
