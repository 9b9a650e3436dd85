"""Figure 2: what a method gains on the fixed-prefix probe while it trains, and where by conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saki.analysis.probe_comparison import CONTRAST, QUARTILES, Effect, ProbeComparison
from saki.analysis.publication import PAGE_WIDTH, Drawing, panel_title, print_context
from saki.analysis.study_tables import SHOWN
from saki.analysis.style import BLUE, FAINT, INK, VERMILION

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEADER = (
    "panel",
    "measured",
    "reference",
    "step",
    "figure",
    "group",
    "gain_pp",
    "low_pp",
    "high_pp",
    "prompts",
    "seeds",
)


def draw_figure2(
    gains: ProbeComparison, by_conflict: ProbeComparison | None = None, active_steps: int | None = None
) -> Drawing:
    """Draw Figure 2: (a) gains in C_1 and C_k by step, (b) in C_k and (c) in C_k - C_1 by quartile of conflict.

    Bars and whiskers are 95% intervals over prompts. Shading marks the steps at which corrections happen, the dotted
    line the first step at radius 0.

    Args:
        gains: The method against what panel (a) compares it with: TRB in the paper.
        by_conflict: The method against what (b) and (c) compare it with, at its last step: Random-TM in the paper; by
            default the same as ``gains``.
        active_steps: Last step with a radius above 0, or None where that is not known.
    """
    other = by_conflict or gains
    rows: list[tuple[object, ...]] = []
    with print_context():
        figure = Figure(figsize=(PAGE_WIDTH, 2.5), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1.0, 1.0))
        _draw_steps(left, gains, active_steps, rows)
        _draw_quartiles(middle, "b", other, "c_top", rows)
        _draw_quartiles(right, "c", other, "c_rest", rows)
    return Drawing("figure2", figure, _HEADER, tuple(rows))


def _draw_steps(axes: Axes, comparison: ProbeComparison, active: int | None, rows: list[tuple[object, ...]]) -> None:
    steps = np.array(comparison.steps)
    if active is not None and active >= steps.min():
        axes.axvspan(min(0, int(steps.min())), active, color=FAINT, alpha=0.13, linewidth=0)
        if active < steps.max():
            axes.axvline(active + 1, color=INK, linewidth=0.9, linestyle=(0, (1, 1.5)))
    shift = 0.006 * float(np.ptp(steps))  # whiskers of the two stand beside one another
    for metric, colour, marker, side in (("c1", BLUE, "o", -shift), ("c_top", VERMILION, "s", shift)):
        effects = [comparison.effect(int(step), metric) for step in steps]
        values, ends = _points(effects)
        axes.errorbar(
            steps + side, values, yerr=ends, color=colour, marker=marker, capsize=2, elinewidth=0.9,
            label=f"Δ{_name(metric, comparison.top_k)}", linestyle="solid" if metric == "c1" else (0, (4, 1.5)),
        )  # fmt: skip
        rows += [_row("a", comparison, effect) for effect in effects]
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("percentage points")
    axes.set_title(panel_title("a", f"gain over {_shown(comparison.reference)}"))
    axes.legend(loc="best", handlelength=2.6)


def _draw_quartiles(
    axes: Axes, letter: str, comparison: ProbeComparison, metric: str, rows: list[tuple[object, ...]]
) -> None:
    step = comparison.steps[-1]
    effects = [comparison.effect(step, metric, group) for group in QUARTILES]
    values, ends = _points(effects)
    places = np.arange(len(effects))
    axes.bar(places, values, color=BLUE, width=0.66, alpha=0.85)
    axes.errorbar(places, values, yerr=ends, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.set_xticks(places, QUARTILES)
    axes.grid(axis="x", visible=False)
    contrast = comparison.effect(step, metric, CONTRAST)
    (value,), ((below,), (above,)) = _points([contrast])
    interval = f"{value:+.2f} [{value - below:.2f}, {value + above:.2f}]".replace("-", "\N{MINUS SIGN}")
    axes.set_xlabel(f"quartile of initial KL(T‖S)\nQ4−Q1 {interval}")
    axes.set_title(
        panel_title(letter, f"Δ{_name(metric, comparison.top_k)}\nover {_shown(comparison.reference)}, step {step}")
    )
    rows += [_row(letter, comparison, effect) for effect in (*effects, contrast)]


def _points(effects: list[Effect]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and distances to the ends of their intervals, percentage points."""
    table = 100 * np.array([(each.value, each.value - each.low, each.high - each.value) for each in effects])
    return table[:, 0], np.maximum(table[:, 1:].T, 0)


def _row(panel: str, comparison: ProbeComparison, effect: Effect) -> tuple[object, ...]:
    points = (100 * effect.value, 100 * effect.low, 100 * effect.high)
    name = _name(effect.metric, comparison.top_k)
    about = (effect.num_prompts, effect.num_seeds)
    return (panel, comparison.measured, comparison.reference, effect.step, name, effect.group, *points, *about)


def _name(metric: str, top_k: int) -> str:
    return {"c1": "C1", "c_top": f"C{top_k}", "c_rest": f"(C{top_k}−C1)"}[metric]


def _shown(label: str) -> str:
    return SHOWN.get(label, label)
