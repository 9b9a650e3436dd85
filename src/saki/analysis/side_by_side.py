"""Curves of several runs or arms in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from saki.analysis.figures import MEANS_PER_RUN, Rows, has_values, loss_branches, loss_title, pinsker_bound
from saki.analysis.publication import LINES
from saki.analysis.seed_bands import Band, seed_band
from saki.analysis.style import INK

MOST_LINES = 12
"""Most lines of a picture: more cannot be told apart."""
_MOST_MARKERS = 8
_ACCURACY = "eval/mean_at_"
_GRADED = ("share right", "{:.1%}", "percent")


@dataclass(frozen=True)
class Line:
    """What one line of every picture shows.

    Attributes:
        name: Of the run or arm.
        runs: Rows of each seed's metrics file.
        settings: Dotted names and values of its settings, without what differs between seeds.
    """

    name: str
    runs: tuple[Rows, ...]
    settings: Mapping[str, str]

    @property
    def last_step(self) -> int | None:
        """Last step that any seed has logged."""
        return max((int(rows[-1]["step"]) for rows in self.runs if rows), default=None)


@dataclass(frozen=True)
class Panel:
    """A metric as it is drawn and written.

    Attributes:
        metric: Its name.
        title: Heading of the panel.
        unit: Below the heading: what the numbers are.
        form: Format of one number.
        scale: ``linear``, ``percent`` of something from 0 on, or ``tiny`` for numbers that need an exponent.
    """

    metric: str
    title: str
    unit: str
    form: str
    scale: str = "linear"


PANELS = (
    Panel("rollout/correction_rate", "Corrected tokens", "share of tokens", "{:.2%}", "percent"),
    Panel("rollout/kl_to_teacher", "KL to the teacher", "nats per token", "{:.4f}"),
    Panel("rollout/mean_length", "Completion length", "tokens", "{:.1f}"),
    Panel("rollout/truncated_share", "Completions cut by the cap", "share", "{:.1%}", "percent"),
    Panel("train/logprob_gap_mean", "Drafting against training log-probs", "mean gap, nats", "{:.2g}", "tiny"),
    Panel("time/tokens_per_s", "Rollout speed", "tokens per second", "{:,.0f}"),
)


def panels_shown(lines: Sequence[Line]) -> list[Panel]:
    """Panels of what any line has logged: evaluation, losses by branch, and :data:`PANELS`."""
    rows = [row for line in lines for run in line.runs for row in run]
    graded = sorted({name for row in rows for name in row if name.startswith(_ACCURACY)})
    panels = [
        *(Panel(name, f"Mean@{name.removeprefix(_ACCURACY)}, evaluation prompts", *_GRADED) for name in graded),
        Panel("loss", "Loss of a step", "mean over tokens", "{:.4g}"),
        *(
            Panel(name, _capitalised(f"{loss_title(name)} loss"), "mean of its tokens", "{:.4g}")
            for name in loss_branches(rows)
        ),
        *PANELS,
    ]
    runs = [run for line in lines for run in line.runs]
    return [panel for panel in panels if any(has_values(run, panel.metric) for run in runs)]


def draw_side_by_side(lines: Sequence[Line], panels: Sequence[Panel]) -> Figure:
    """One or two metrics beside one another, a line a run or an arm; shading is the 95% t interval over seeds.

    Curves are running means over :func:`smoothing` values.

    Args:
        lines: What is compared, at most :data:`MOST_LINES`.
        panels: What is drawn of it, one or two.
    """
    rows_of_legend = -(-len(lines) // 3)
    figure = Figure(figsize=(7.2, 2.9 + 0.22 * rows_of_legend), layout="constrained")
    axes_of = figure.subplots(1, 2, squeeze=False)[0]
    for axes, panel in zip(axes_of, panels, strict=False):
        _draw_panel(axes, lines, panel, smoothing(lines))
    for axes in axes_of[len(panels) :]:
        axes.set_axis_off()
    handles: dict[str, Any] = {}
    for axes in axes_of:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower left", ncols=3, handlelength=3.2, columnspacing=1.4
    )
    return figure


def smoothing(lines: Sequence[Line]) -> int:
    """Values of which every curve is a running mean: a twentieth of the longest run."""
    return max([1, *(len(run) // MEANS_PER_RUN for line in lines for run in line.runs)])


def last_values(line: Line, panels: Sequence[Panel]) -> list[str]:
    """The last value of each panel's metric, with half of its interval where there is one; a dash where not logged."""
    return [_last(seed_band(line.runs, panel.metric), panel) for panel in panels]


def _draw_panel(axes: Axes, lines: Sequence[Line], panel: Panel, window: int) -> None:
    for number, line in enumerate(lines):
        band = seed_band(line.runs, panel.metric, window)
        if not band.steps.size:
            continue
        colour, dash, marker = LINES[number % len(LINES)]
        every = max(1, len(band.steps) // _MOST_MARKERS)
        axes.plot(
            band.steps, band.mean, color=colour, linestyle=dash, linewidth=1.4, marker=marker, markersize=4,
            markevery=(number % every, every), label=line.name,
        )  # fmt: skip
        axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
    if panel.metric == "rollout/correction_rate":
        _draw_bounds(axes, lines)
    if panel.scale == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif panel.scale == "tiny":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1e}"))
    if panel.scale != "linear":
        axes.set_ylim(bottom=0)
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.margins(x=0.02)


def _draw_bounds(axes: Axes, lines: Sequence[Line]) -> None:
    """Each distinct bound once."""
    drawn: set[tuple[float, ...]] = set()
    for line in lines:
        for steps, bound in (pinsker_bound(run) for run in line.runs[:1]):
            if bound.size and tuple(bound) not in drawn and np.isfinite(bound).any():
                label = None if drawn else "Pinsker bound"
                axes.plot(steps, bound, color=INK, linestyle=(0, (6, 3)), linewidth=0.9, label=label)
                drawn.add(tuple(bound))


def _last(band: Band, panel: Panel) -> str:
    if not band.steps.size:
        return "-"
    value = panel.form.format(band.mean[-1])
    half = band.high[-1] - band.mean[-1]
    half = 0.0 if half < 1e-12 * abs(band.mean[-1]) else half  # rounding, where all seeds are equal
    return value if np.isnan(half) else f"{value} ± {panel.form.format(half)}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
