"""The figure of ``saki bench rollout``: tokens per second of each arm, and where its time goes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from saki.analysis.publication import PAGE_WIDTH, Drawing, print_context
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
    figure_to_svg,
)
from saki.files import write_text

_LOOKS = {
    "prefill": (SKY, ""),
    "draft": (BLUE, "//"),
    "verify": (ORANGE, "--"),
    "bridge": (GREEN, "\\\\"),
    "coupling": (VERMILION, "xx"),
    "rest": (FAINT, ".."),
}
_OTHERS = ((PURPLE, "++"), (INK, "//"), (SKY, "xx"))
_HEADER = ("arm", "tokens_per_s", "slowest", "fastest", "ratio_to_student_only", "phase", "share_of_time")


def plot_rollout_benchmark(result: Mapping[str, Any], path: Path) -> Path:
    """Write the figure as PNG or SVG, by the ending of the path.

    Args:
        result: What ``saki bench rollout --json`` prints.
        path: Ends in ``.png`` or ``.svg``.

    Returns:
        The path written.

    Raises:
        ValueError: If there are no arms, or the ending is another.
    """
    if not result.get("arms"):
        raise ValueError("the benchmark has no arms; expected the JSON of saki bench rollout")
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"the figure is written as .png or .svg, got {path.name!r}")
    with figure_context():
        figure = draw_rollout_benchmark(result)
        if path.suffix == ".png":
            return figure_to_png(figure, path)
        write_text(path, figure_to_svg(figure, "bench", describe_rollout_benchmark(result)))
        return path


def rollout_drawing(result: Mapping[str, Any], name: str = "throughput") -> Drawing:
    """The figure for print (Tables 3 and 9), with its numbers.

    Args:
        result: What ``saki bench rollout --json`` prints.
        name: Name of the figure.

    Raises:
        ValueError: If it is no such JSON.
    """
    try:
        rows = []
        for label, arm in result["arms"].items():
            ends = arm["spread"]["tokens_per_s"]
            whole = sum(arm["split"].values())
            speeds = (arm["tokens_per_s"], ends["min"], ends["max"], arm.get("ratio_to_student_only"))
            rows += [(label, *speeds, phase, seconds / whole) for phase, seconds in arm["split"].items() if seconds]
        with print_context():
            figure = draw_rollout_benchmark(result, width=PAGE_WIDTH)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"expected the JSON of saki bench rollout, which this is not ({error!r})") from error
    return Drawing(name, figure, _HEADER, tuple(rows))


def draw_rollout_benchmark(result: Mapping[str, Any], width: float = 8.4) -> Figure:
    """Bars of tokens per second with their spread on the left; on the right the split as shares of one run.

    Behind a speed stands its ratio to that of the student alone, where that was measured.

    Args:
        result: What ``saki bench rollout --json`` prints.
        width: Width of the figure, inches.
    """
    arms = result["arms"]
    small = mpl.rcParams["font.size"] - 1
    split = {name: arm["split"] for name, arm in arms.items() if set(_nonzero(arm["split"])) - {"rest"}}
    figure = Figure(figsize=(width, width / 8.4 * (1.2 + 0.42 * len(arms))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    places = np.arange(len(arms))[::-1]
    speeds = np.array([arm["tokens_per_s"] for arm in arms.values()])
    ends = np.array([[arm["spread"]["tokens_per_s"][end] for arm in arms.values()] for end in ("min", "max")])
    left.barh(places, speeds, color=BLUE, height=0.62)
    left.errorbar(speeds, places, xerr=np.abs(ends - speeds), fmt="none", ecolor=INK, elinewidth=1.0, capsize=2.5)
    for place, arm, end in zip(places, arms.values(), ends[1], strict=True):
        ratio = arm.get("ratio_to_student_only")
        text = f" {arm['tokens_per_s']:,.0f}" + (f"  {ratio:.2f}×" if ratio is not None else "")
        left.annotate(text, (max(arm["tokens_per_s"], end), place), va="center", fontsize=small)
    left.set_yticks(places, list(arms))
    left.set_xlim(0, 1.4 * float(ends[1].max()))
    compared = any(arm.get("ratio_to_student_only") is not None for arm in arms.values())
    left.set_xlabel("tokens per second" + (", and × the student alone" if compared else ""))
    left.grid(axis="y", visible=False)
    rows = np.arange(len(split))[::-1]
    begin = np.zeros(len(split))
    phases = list(dict.fromkeys(phase for parts in split.values() for phase in parts))
    others = dict(zip((phase for phase in phases if phase not in _LOOKS), itertools.cycle(_OTHERS), strict=False))
    for phase in phases:
        share = np.array([parts.get(phase, 0.0) / sum(parts.values()) for parts in split.values()])
        colour, hatch = others.get(phase) or _LOOKS[phase]
        right.barh(
            rows, share, left=begin, height=0.62, color=colour, hatch=hatch, edgecolor=PAPER, linewidth=0, label=phase
        )
        begin = begin + share
    right.set_yticks(rows, list(split))
    right.set_xlim(0, 1)
    right.set_xlabel("share of the time")
    right.grid(axis="y", visible=False)
    if split:
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=7)
    return figure


def describe_rollout_benchmark(result: Mapping[str, Any]) -> str:
    """One sentence with the speed of each arm."""
    return "Tokens per second: " + ", ".join(
        f"{name} {arm['tokens_per_s']:.0f}" for name, arm in result["arms"].items()
    )


def _nonzero(split: Mapping[str, float]) -> list[str]:
    return [phase for phase, seconds in split.items() if seconds > 0]
