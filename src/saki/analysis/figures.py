"""The charts of a training run, each drawn from the rows of its metrics file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from saki.analysis.metrics_file import merge_steps, series
from saki.analysis.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PAPER,
    PURPLE,
    SKY,
    VERMILION,
    figure_context,
    figure_to_png,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Rows = Sequence[Mapping[str, Any]]
"""Rows with rising step, as of :func:`saki.analysis.metrics_file.merge_steps`."""

CORRECTION_RATE, MEAN_TV = "rollout/correction_rate", "rollout/mean_tv"
PINSKER_BOUND, RADIUS = "rollout/pinsker_bound", "rollout/trust_region_radius"
TIME_PARTS = (
    "time/rollout_s",
    "time/score_s",
    "time/update_s",
    "time/sync_s",
    "time/facts_s",
    "time/wait_s",
    "time/rest_s",
)
"""Parts of a step's seconds; together they are ``time/step_s``."""
_PAPER_LOSSES = ("loss/reverse_kl", "loss/teacher_mode")

_TIME_LOOKS = (
    (BLUE, "//"),
    (ORANGE, "--"),
    (GREEN, "\\\\"),
    (PURPLE, "xx"),
    (SKY, ".."),
    (VERMILION, "||"),
    (FAINT, ""),
)
_WIDE = (7.2, 3.0)
_MOST_MARKERS = 400  # each one is an element of the page
MEANS_PER_RUN = 20
"""The running mean spans a 20th of the run."""


@dataclass(frozen=True)
class Chart:
    """One chart of the report.

    Attributes:
        name: Unique in a page.
        title: Heading.
        metrics: Names of the metrics that it shows, of all runs or by rows; it is drawn where one was logged.
        draw: Rows to figure, to be called in :func:`saki.analysis.style.figure_context`.
        describe: Rows to sentences with the numbers that matter, for print and for readers of text.
    """

    name: str
    title: str
    metrics: tuple[str, ...] | Callable[[Rows], tuple[str, ...]]
    draw: Callable[[Rows], Figure]
    describe: Callable[[Rows], str]

    def names(self, rows: Rows) -> tuple[str, ...]:
        """Names of the metrics that it shows of these rows."""
        return self.metrics(rows) if callable(self.metrics) else self.metrics


def has_values(rows: Rows, name: str) -> bool:
    """Whether a metric was logged with at least one finite number."""
    return bool(np.isfinite(series(rows, name)[1]).any())


def time_parts(rows: Rows) -> list[str]:
    """The parts of a step that took any time, or all that were logged where none did.

    One process waits for nobody and most methods ask for nothing beside the rollout, so their zeros are left out.
    """
    logged = [name for name in TIME_PARTS if has_values(rows, name)]
    return [name for name in logged if np.nanmax(series(rows, name)[1]) > 0] or logged


def plot_corrections(metrics: Rows, path_png: Path) -> Path:
    """Write the correction chart (Figure 4 of the paper) as PNG on a light ground.

    Args:
        metrics: Rows of a metrics file, as logged.
        path_png: Where to.

    Returns:
        The path written.

    Raises:
        ValueError: If no correction rate was logged.
    """
    rows = merge_steps(metrics)
    if not has_values(rows, CORRECTION_RATE):
        raise ValueError(
            f"no {CORRECTION_RATE} among the metrics of {len(rows)} steps; expected a run that samples the bridge"
        )
    with figure_context():
        return figure_to_png(draw_corrections(rows), Path(path_png))


def pinsker_bound(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """([n] steps, [n] sqrt(radius / 2)): as logged, else from the logged radius (nats); empty without both."""
    if has_values(rows, PINSKER_BOUND):
        return series(rows, PINSKER_BOUND)
    steps, radius = series(rows, RADIUS)
    return steps, np.sqrt(radius / 2)


def draw_corrections(rows: Rows) -> Figure:
    """Realised correction rate under its Pinsker bound, the mean TV between."""
    figure, (axes,) = panels_of(1)
    steps, bound = pinsker_bound(rows)
    if bound.size:
        axes.fill_between(steps, bound, color=FAINT, alpha=0.12, linewidth=0)
        axes.plot(steps, bound, color=INK, linestyle=(0, (5, 2)), linewidth=1.6, label="Pinsker bound √(radius/2)")
    steps, tv = series(rows, MEAN_TV)
    if tv.size:
        axes.plot(steps, tv, color=ORANGE, linewidth=3.4, label="mean TV(p, q)")
    steps, rate = series(rows, CORRECTION_RATE)
    if rate.size:
        marker = "." if rate.size <= _MOST_MARKERS else ""
        axes.plot(steps, rate, color=BLUE, linewidth=1.1, marker=marker, markersize=3.5, label="corrected tokens")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("share of tokens")
    _legend(axes)
    return figure


def describe_corrections(rows: Rows) -> str:
    """How far the rate stays under its bound, and that no correction comes at radius 0."""
    steps, rate = series(rows, CORRECTION_RATE)
    finite = np.isfinite(rate)
    if not finite.any():
        return ""
    steps, rate = steps[finite], rate[finite]
    top = int(rate.argmax())
    sentences = [
        f"Corrected: {_percent(rate[0])} of tokens at step {steps[0]:.0f}, at most {_percent(rate[top])} "
        f"(step {steps[top]:.0f}), {_percent(rate[-1])} at step {steps[-1]:.0f}."
    ]
    bound = dict(zip(*pinsker_bound(rows), strict=True))
    pairs = [(r, bound[s]) for s, r in zip(steps, rate, strict=True) if np.isfinite(bound.get(s, np.nan))]
    if pairs:
        above = sum(r > b for r, b in pairs)
        sentences.append(f"The rate lies above the bound at {above} of {len(pairs)} steps.")
        guided = [r / b for r, b in pairs if b > 0]
        if guided:
            sentences.append(f"It reaches {_percent(max(guided))} of the bound at most.")
        unguided = [r for r, b in pairs if b == 0]
        if unguided:
            sentences.append(
                f"At the {len(unguided)} steps of radius 0 it is {'exactly 0' if not any(unguided) else 'not 0'}."
            )
    return " ".join(sentences)


def loss_branches(rows: Rows) -> tuple[str, ...]:
    """Names of the losses to show: the paper's two branches, and any other branch that was logged."""
    logged = {name for row in rows for name in row if name.startswith("loss/") and not name.endswith("_share")}
    return (*_PAPER_LOSSES, *sorted(logged.difference(_PAPER_LOSSES)))


def draw_losses(rows: Rows) -> Figure:
    """The loss of each branch that was logged, a panel each since their scales differ."""
    names = [name for name in loss_branches(rows) if has_values(rows, name)]
    figure, panels = panels_of(len(names))
    colours = {"loss/reverse_kl": BLUE, "loss/teacher_mode": VERMILION}
    for axes, name in zip(panels, names, strict=True):
        draw_trend(axes, rows, name, colours.get(name, GREEN))
        axes.set_title(loss_title(name))
    panels[0].set_ylabel("mean loss of its tokens")
    return figure


def describe_losses(rows: Rows) -> str:
    """First and last loss of each branch."""
    titles = {name: loss_title(name) for name in loss_branches(rows)}
    parts = ((name, title[:1].upper() + title[1:], "{:.4g}") for name, title in titles.items())
    return _describe(*parts)(rows)


def loss_title(name: str) -> str:
    """How a branch of the loss is called in a heading."""
    return name.removeprefix("loss/").replace("_", " ").replace("kl", "KL")


def draw_kl(rows: Rows) -> Figure:
    """KL from the student to the teacher on the rollouts."""
    figure, (axes,) = panels_of(1)
    draw_trend(axes, rows, "rollout/kl_to_teacher", GREEN)
    axes.set_ylabel("nats per token")
    return figure


def draw_lengths(rows: Rows) -> Figure:
    """Mean completion length and the share of completions that met the cap."""
    figure, (left, right) = panels_of(2)
    draw_trend(left, rows, "rollout/mean_length", BLUE)
    left.set_title("mean completion length")
    left.set_ylabel("tokens")
    draw_trend(right, rows, "rollout/truncated_share", VERMILION)
    right.set_title("completions cut by the cap")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    right.set_ylim(bottom=0)
    return figure


def draw_logprob_gap(rows: Rows) -> Figure:
    """Gap between the log-probs at drafting and in the trainer, on a log scale where it is positive."""
    figure, (axes,) = panels_of(1)
    positive = True
    for name, label, colour, dash in (
        ("train/logprob_gap_max", "largest", VERMILION, (0, (4, 2))),
        ("train/logprob_gap_mean", "mean", BLUE, "solid"),
    ):
        steps, gap = series(rows, name)
        if gap.size:
            axes.plot(steps, gap, color=colour, linestyle=dash, linewidth=1.4, label=label)
            positive &= bool((gap[np.isfinite(gap)] > 0).all())
    if positive:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda gap, _: f"{gap:.0e}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("nats")
    _legend(axes)
    return figure


def describe_logprob_gap(rows: Rows) -> str:
    """First and last mean gap, and the largest of the run."""
    _, largest = series(rows, "train/logprob_gap_max")
    sentences = [first_to_last(rows, "train/logprob_gap_mean", "Mean gap, nats", "{:.2g}")]
    if np.isfinite(largest).any():
        sentences.append(f"Largest gap of the run: {np.nanmax(largest):.2g} nats.")
    return " ".join(filter(None, sentences))


def draw_speed(rows: Rows) -> Figure:
    """Tokens per second, and where the seconds of a step go."""
    figure, (left, right) = panels_of(2)
    draw_trend(left, rows, "time/tokens_per_s", BLUE)
    left.set_title("rollout speed")
    left.set_ylabel("tokens per second")
    left.set_ylim(bottom=0)
    parts = time_parts(rows)
    if parts:
        steps, seconds = _stack(rows, parts)
        looks = dict(zip(TIME_PARTS, _TIME_LOOKS, strict=True))
        floor = np.zeros(len(steps))
        for name, height in zip(parts, seconds, strict=True):
            colour, hatch = looks[name]
            label = name.removeprefix("time/").removesuffix("_s")
            right.fill_between(
                steps, floor, floor + height, facecolor=colour, hatch=hatch, edgecolor=PAPER, linewidth=0, label=label
            )
            floor = floor + height
        right.legend(
            loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True, handlelength=1.6, handleheight=1.2, borderpad=0
        )
    right.set_title("seconds of a step")
    right.set_ylim(bottom=0)
    return figure


def describe_speed(rows: Rows) -> str:
    """First and last speed, and the mean split of a step."""
    parts = time_parts(rows)
    sentences = [first_to_last(rows, "time/tokens_per_s", "Tokens per second", "{:,.0f}")]
    if parts:
        _, seconds = _stack(rows, parts)
        total = float(seconds.sum())
        split = ", ".join(
            f"{name.removeprefix('time/').removesuffix('_s')} {_percent(float(part.sum()) / total if total else 0.0)}"
            for name, part in zip(parts, seconds, strict=True)
        )
        sentences.append(f"{total / seconds.shape[1]:.3g} seconds a step on average: {split}.")
        if any(series(rows, name)[0].size < seconds.shape[1] for name in parts):
            sentences.append("A part that was not logged at a step takes no room there.")
    return " ".join(filter(None, sentences))


def first_to_last(rows: Rows, name: str, label: str, form: str = "{:.4g}") -> str:
    """A sentence with the first and the last finite value of a metric; empty without one."""
    steps, values = series(rows, name)
    finite = np.isfinite(values)
    if not finite.any():
        return ""
    steps, values = steps[finite], values[finite]
    if len(steps) == 1:
        return f"{label}: {form.format(values[0])} at step {steps[0]:.0f}."
    return (
        f"{label}: {form.format(values[0])} at step {steps[0]:.0f}, {form.format(values[-1])} at step {steps[-1]:.0f}."
    )


def _describe(*parts: tuple[str, str, str]) -> Callable[[Rows], str]:
    def describe(rows: Rows) -> str:
        sentences = [first_to_last(rows, *part) for part in parts]
        window = max(_window(series(rows, name)[1]) for name, *_ in parts)
        sentences.append(f"The thick line is a running mean over {window} values." if window > 1 else "")
        return " ".join(filter(None, sentences))

    return describe


def _window(values: NDArray[np.float64]) -> int:
    return max(1, len(values) // MEANS_PER_RUN)


def panels_of(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of as many panels beside one another, with the optimizer step below each."""
    figure = Figure(figsize=_WIDE, layout="constrained")
    axes = [figure.add_subplot(1, count, index + 1) for index in range(count)]
    for each in axes:
        each.set_xlabel("optimizer step")
        each.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8 if count == 1 else 5))
        each.margins(x=0.01)
    return figure, axes


def draw_trend(axes: Axes, rows: Rows, name: str, colour: str) -> None:
    """Every value thin, a running mean thick. An axis without values says so."""
    steps, values = series(rows, name)
    if not np.isfinite(values).any():
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color=FAINT)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    window = _window(values)
    alone = window == 1
    axes.plot(steps, values, color=colour, linewidth=1.6 if alone else 0.9, alpha=1.0 if alone else 0.45)
    if len(values) == 1:
        axes.plot(steps, values, color=colour, marker="o")
    if not alone:
        axes.plot(steps, running_mean(values, window), color=colour, linewidth=2.2)


def running_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Centred mean over ``window`` values, fewer at both ends; values that are not numbers do not count."""
    known = np.isfinite(values)
    kernel = np.ones(window)
    total = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    count = np.convolve(known.astype(float), kernel, mode="same")
    mean: NDArray[np.float64] = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0.5)
    return mean


def _stack(rows: Rows, names: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """([n] steps, [parts, n] seconds) over the steps that have any part."""
    table = {name: dict(zip(*series(rows, name), strict=True)) for name in names}
    steps = np.array(sorted(set().union(*table.values())))
    seconds = np.array([[table[name].get(step, 0.0) for step in steps] for name in names])
    return steps, np.nan_to_num(seconds)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, borderaxespad=0.2, columnspacing=1.4)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


CHARTS: tuple[Chart, ...] = (
    Chart(
        "corrections",
        "Corrections under their bound",
        (CORRECTION_RATE, MEAN_TV, PINSKER_BOUND, RADIUS),
        draw_corrections,
        describe_corrections,
    ),
    Chart(
        "kl",
        "KL to the teacher",
        ("rollout/kl_to_teacher",),
        draw_kl,
        _describe(("rollout/kl_to_teacher", "KL to the teacher, nats per token", "{:.4g}")),
    ),
    Chart("losses", "Losses by branch", loss_branches, draw_losses, describe_losses),
    Chart(
        "lengths",
        "Completion length",
        ("rollout/mean_length", "rollout/truncated_share"),
        draw_lengths,
        _describe(
            ("rollout/mean_length", "Mean length in tokens", "{:.1f}"),
            ("rollout/truncated_share", "Share cut by the cap", "{:.1%}"),
        ),
    ),
    Chart(
        "gap",
        "Gap between drafting and training log-probs",
        ("train/logprob_gap_mean", "train/logprob_gap_max"),
        draw_logprob_gap,
        describe_logprob_gap,
    ),
    Chart("speed", "Speed and where the time goes", ("time/tokens_per_s", *TIME_PARTS), draw_speed, describe_speed),
)
"""The charts of the report, in its order."""
