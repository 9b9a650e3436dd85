"""The figure of ``saki bench rollout``: tokens per second of each arm, and where its time goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

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
_OTHER = (PURPLE, "++")


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


def draw_rollout_benchmark(result: Mapping[str, Any]) -> Figure:
    """Bars of tokens per second with their spread on the left; on the right the split as shares of one run."""
    arms = result["arms"]
    split = {name: arm["split"] for name, arm in arms.items() if set(_nonzero(arm["split"])) - {"rest"}}
    figure = Figure(figsize=(8.4, 0.7 + 0.42 * len(arms) + 0.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1.0))
    places = np.arange(len(arms))[::-1]
    speeds = np.array([arm["tokens_per_s"] for arm in arms.values()])
    ends = np.array([[arm["spread"]["tokens_per_s"][end] for arm in arms.values()] for end in ("min", "max")])
    left.barh(places, speeds, color=BLUE, height=0.62)
    left.errorbar(speeds, places, xerr=np.abs(ends - speeds), fmt="none", ecolor=INK, elinewidth=1.0, capsize=2.5)
    for place, speed, end in zip(places, speeds, ends[1], strict=True):
        left.annotate(f" {speed:,.0f}", (max(speed, end), place), va="center", fontsize=9)
    left.set_yticks(places, list(arms))
    left.set_xlim(0, 1.2 * float(ends[1].max()))
    left.set_xlabel("tokens per second")
    left.grid(axis="y", visible=False)
    rows = np.arange(len(split))[::-1]
    begin = np.zeros(len(split))
    for phase in dict.fromkeys(phase for parts in split.values() for phase in parts):
        share = np.array([parts.get(phase, 0.0) / sum(parts.values()) for parts in split.values()])
        colour, hatch = _LOOKS.get(phase, _OTHER)
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
