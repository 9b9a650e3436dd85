"""Bars of where the seconds of a training step go (Table 10), of ``saki bench train`` and of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from saki.analysis.figures import TIME_PARTS, Rows, time_parts
from saki.analysis.metrics_file import series
from saki.analysis.publication import BARS, PAGE_WIDTH, Drawing, print_context
from saki.analysis.style import FAINT, INK

_HEADER = ("arm", "part", "seconds", "share")
_PARTS = {"generation_s": "rollout", "scoring_s": "scoring", "update_s": "update", "sync_s": "weight sync"}
REST = "rest"
_OF_RUNS = dict(
    zip(TIME_PARTS, ("rollout", "scoring", "update", "weight sync", "what methods ask", "waiting", REST), strict=True)
)

Split = Mapping[str, float]
"""Seconds of a step by part, in the order in which they are drawn."""


def benchmark_steps(result: Mapping[str, Any]) -> dict[str, Split]:
    """Median seconds of a step by arm and part, out of the JSON of ``saki bench train``.

    Raises:
        ValueError: If it is no such JSON.
    """
    try:
        arms = {name: {part: float(arm[key]) for key, part in _PARTS.items()} for name, arm in result["arms"].items()}
        whole = {name: float(arm["step_s"]) for name, arm in result["arms"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"expected the JSON of saki bench train, which this is not ({error!r})") from error
    return {name: {**parts, REST: max(0.0, whole[name] - sum(parts.values()))} for name, parts in arms.items()}


def run_steps(rows: Rows) -> Split:
    """Mean seconds of a run's step by part.

    Raises:
        ValueError: If no time was logged.
    """
    split = {_OF_RUNS[name]: float(np.nanmean(series(rows, name)[1])) for name in time_parts(rows)}
    if not split:
        raise ValueError(f"none of {', '.join(TIME_PARTS)} was logged; expected the metrics of a run of saki train")
    return split


def draw_step_times(arms: Mapping[str, Split], name: str = "step_time") -> Drawing:
    """Draw one bar an arm, cut into parts, with the whole at its end.

    Args:
        arms: By name, seconds of a step by part.
        name: Name of the figure.
    """
    parts = list(dict.fromkeys(part for split in arms.values() for part in split if part != REST))
    looks = {part: BARS[index % len(BARS)] for index, part in enumerate(parts)}
    if any(split.get(REST) for split in arms.values()):
        parts.append(REST)
        looks[REST] = (FAINT, "")
    whole = np.array([sum(split.values()) for split in arms.values()])
    with print_context():
        figure = Figure(figsize=(0.8 * PAGE_WIDTH, 0.85 + 0.32 * len(arms)), layout="constrained")
        axes = figure.add_subplot()
        places, begin = np.arange(len(arms))[::-1], np.zeros(len(arms))
        for part in parts:
            seconds = np.array([split.get(part, 0.0) for split in arms.values()])
            colour, hatch = looks[part]
            axes.barh(
                places,
                seconds,
                left=begin,
                height=0.62,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0,
                label=part,
            )
            begin = begin + seconds
        for place, seconds in zip(places, whole, strict=True):
            axes.annotate(f" {seconds:.3g} s", (seconds, place), va="center", color=INK, fontsize=7.5)
        axes.set_yticks(places, list(arms))
        axes.set_xlim(0, 1.12 * float(whole.max()))
        axes.set_xlabel("seconds of a step")
        axes.grid(axis="y", visible=False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    rows = tuple(
        (arm, part, seconds, seconds / max(sum(split.values()), 1e-300))
        for arm, split in arms.items()
        for part, seconds in split.items()
    )
    return Drawing(name, figure, _HEADER, rows)
