"""Figure 4: how often a rollout is corrected while the radius anneals, under the Pinsker bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from saki.analysis.figures import CORRECTION_RATE, Rows, has_values, pinsker_bound
from saki.analysis.publication import LINES, PAGE_WIDTH, Drawing, print_context
from saki.analysis.seed_bands import seed_band
from saki.analysis.study_tables import SHOWN
from saki.analysis.style import FAINT, INK

_HEADER = ("arm", "step", "radius_nats", "pinsker_bound", "correction_rate", "low", "high", "seeds")
_MOST_MARKERS = 30


def draw_figure4(arms: Mapping[str, Sequence[Rows]], name: str = "figure4") -> Drawing:
    """Draw Figure 4: the realised correction rate by step, with its bound sqrt(radius / 2) (Eq. 11).

    Several seeds give their mean, with a 95% t interval over seeds as shading. A dotted line marks the first step at
    radius 0, at which the rate is 0.

    Args:
        arms: By label, or ``LABEL, STUDENT``, the rows of each seed's metrics file; what is not guided is left out.
        name: Name of the figure.

    Raises:
        ValueError: If no run is guided.
    """
    bounded = {label: [rows for rows in runs if is_guided(rows)] for label, runs in arms.items()}
    drawn = {label: runs for label, runs in bounded.items() if runs}
    if not drawn:
        raise ValueError(
            f"none of {', '.join(arms) or 'no run'} logged {CORRECTION_RATE} with a bound above 0; Figure 4 takes a "
            "run whose rollout the radius bounds, such as one of saki or trb"
        )
    rows: list[tuple[object, ...]] = []
    bounds: set[tuple[float, ...]] = set()
    ends: set[float] = set()
    with print_context():
        figure = Figure(figsize=(0.62 * PAGE_WIDTH, 2.7), layout="constrained")
        axes = figure.add_subplot()
        for (label, runs), (colour, dash, marker) in zip(drawn.items(), _lines(len(drawn)), strict=True):
            steps, bound = pinsker_bound(runs[0])
            if tuple(bound) not in bounds:
                axes.plot(steps, bound, color=INK, linestyle=(0, (5, 2)), label=None if bounds else "bound √(radius/2)")
                axes.fill_between(steps, bound, color=FAINT, alpha=0.1, linewidth=0)
            bounds.add(tuple(bound))
            band = seed_band(runs, CORRECTION_RATE)
            arm, comma, student = label.partition(", ")
            shown = SHOWN.get(arm, arm) + comma + student
            axes.plot(
                band.steps, band.mean, color=colour, linestyle=dash, marker=marker,
                markevery=max(1, len(band.steps) // _MOST_MARKERS), markersize=2.8, linewidth=1.1,
                label=f"corrected, {shown}" if label else "corrected",
            )  # fmt: skip
            axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.22, linewidth=0)
            known = dict(zip(steps, bound, strict=True))
            free = [step for step, each in known.items() if each == 0]
            if free and len(free) < len(known):
                ends.add(min(free))
            for step, *values, count in zip(band.steps, band.mean, band.low, band.high, band.counts, strict=True):
                limit = known.get(step, np.nan)
                rows.append((label, int(step), 2 * limit**2, limit, *values, int(count)))
        for end in sorted(ends):
            axes.axvline(end, color=INK, linewidth=0.9, linestyle=(0, (1, 1.5)))
            axes.annotate(
                f"radius 0\nfrom step {end:.0f}", (end, 0.5), xycoords=("data", "axes fraction"), xytext=(4, 0),
                textcoords="offset points", fontsize=7.5,
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("share of tokens")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2, borderaxespad=0.2)
    return Drawing(name, figure, _HEADER, tuple(rows))


def is_guided(rows: Rows) -> bool:
    """Whether a run logged a correction rate with a bound that was above 0 at some step."""
    return has_values(rows, CORRECTION_RATE) and bool((pinsker_bound(rows)[1] > 0).any())


def _lines(count: int) -> list[tuple[str, object, str]]:
    return [LINES[index % len(LINES)] for index in range(count)]
