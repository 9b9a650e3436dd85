"""Figure 3: what a method gains over its reference, set by set and on average, and which part is due to placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saki.analysis.publication import BARS, PAGE_WIDTH, Drawing, panel_title, print_context
from saki.analysis.study_results import Sample
from saki.analysis.study_statistics import Difference, Spread, paired, share_spread
from saki.analysis.study_tables import SHOWN, Arms
from saki.analysis.style import FAINT, INK

_HEADER = ("panel", "student", "metric", "what", "value", "low", "high", "seeds")
_METRICS = (("mean", "Mean"), ("passed", "Pass"))

Rows = list[tuple[object, ...]]


def draw_figure3(students: Mapping[str, Arms], method: str, reference: str, placement: str, k: int) -> Drawing:
    """Draw Figure 3: (a) gains set by set, (b) macro averages, (c) the gain's parts through random placement.

    Whiskers are 95% intervals over seeds and problems; differences are paired by seed and problem.

    Args:
        students: By student, its arms.
        method: Label of the method: SAKI in the paper.
        reference: Label of what it is compared with: TRB.
        placement: Label of the control with as many teacher-mode updates at random positions: Random-TM. Panel (c) is
            left out where no student has it.
        k: Samples a problem.

    Raises:
        ValueError: If no student has both arms with a common seed.
    """
    if not students:
        raise ValueError("no finished run of a trained arm; Figure 3 takes a study in which two arms are finished")
    compared = {
        student: (arms[method], arms[reference])
        for student, arms in students.items()
        if method in arms and reference in arms and set(arms[method].seeds) & set(arms[reference].seeds)
    }
    if not compared:
        there = sorted({label for arms in students.values() for label in arms})
        raise ValueError(
            f"no student has both {method} and {reference} with a common seed, only {', '.join(there)}; "
            "name two of these with --method and --reference"
        )
    parts = {
        student: (arms[placement], *compared[student])
        for student, arms in students.items()
        if student in compared and placement in arms and placement not in (method, reference)
    }
    rows: Rows = []
    with print_context():
        figure = Figure(figsize=(PAGE_WIDTH, 4.6), layout="constrained")
        grid = figure.add_gridspec(2, 2)
        _draw_sets(figure.add_subplot(grid[0, :]), compared, method, reference, k, rows)
        below = figure.add_subplot(grid[1, 0] if parts else grid[1, :])
        _draw_averages(below, compared, method, reference, k, rows)
        if parts:
            _draw_parts(figure.add_subplot(grid[1, 1]), parts, method, reference, placement, k, rows)
    return Drawing("figure3", figure, _HEADER, tuple(rows))


def _draw_sets(
    axes: Axes, compared: Mapping[str, tuple[Sample, Sample]], method: str, reference: str, k: int, rows: Rows
) -> None:
    sets = list(dict.fromkeys(name for arm, _ in compared.values() for name in arm.mean))
    width = 0.8 / len(compared)
    for number, (student, (arm, other)) in enumerate(compared.items()):
        colour, hatch = BARS[number % len(BARS)]
        found = [_on_one_set(arm, other, name) for name in sets]
        places = np.arange(len(sets)) + (number - (len(compared) - 1) / 2) * width
        _bars(
            axes, places, [each.spread for each in found], width=0.92 * width, color=colour, hatch=hatch, label=student
        )
        for name, each in zip(sets, found, strict=True):
            rows.append(("a", student, f"Mean@{k}", f"{method} - {reference} on {name}", *_numbers(each.spread)))
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.set_xticks(np.arange(len(sets)), sets)
    axes.set_ylabel("points")
    axes.grid(axis="x", visible=False)
    axes.set_title(panel_title("a", f"Mean@{k} of {_shown(method)} less {_shown(reference)}"))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.1)


def _draw_averages(
    axes: Axes, compared: Mapping[str, tuple[Sample, Sample]], method: str, reference: str, k: int, rows: Rows
) -> None:
    labels, top = [], 0.0
    for place, (of, name, student) in enumerate((of, name, s) for of, name in _METRICS for s in compared):
        arm, other = compared[student]
        difference = paired(arm, other, of)
        assert difference is not None
        values = [share_spread(getattr(each, of)) for each in (other, arm)]
        for side, value, label, look in zip((-1, 1), values, (reference, method), (FAINT, BARS[0][0]), strict=True):
            hatch = "//" if label == reference else ""
            named = _shown(label) if place == 0 else None
            _bars(axes, np.array([place + 0.2 * side]), [value], width=0.37, color=look, hatch=hatch, label=named)
            rows.append(("b", student, f"{name}@{k}", label, *_numbers(value)))
        rows.append(("b", student, f"{name}@{k}", f"{method} - {reference}", *_numbers(difference.spread)))
        height = 100 * max(value.high for value in values)
        top = max(top, height)
        gain = f"{100 * difference.spread.value:+.1f}".replace("-", "\N{MINUS SIGN}")
        axes.annotate(
            gain, (place, height), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=7.5,
            fontweight="bold",
        )  # fmt: skip
        labels.append(f"{student}\n{name}@{k}")
    axes.set_xticks(np.arange(len(labels)), labels)
    axes.set_ylim(0, 1.14 * top)
    axes.set_ylabel("macro average, %")
    axes.grid(axis="x", visible=False)
    axes.set_title(panel_title("b", "average over sets"))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.1)


def _draw_parts(
    axes: Axes,
    parts: Mapping[str, tuple[Sample, Sample, Sample]],
    method: str,
    reference: str,
    placement: str,
    k: int,
    rows: Rows,
) -> None:
    """Two steps from the reference to the method; the second begins where the first ends, so that losses show, too."""
    labels = []
    for place, (of, name, student) in enumerate((of, name, s) for of, name in _METRICS for s in parts):
        control, arm, other = parts[student]
        common = [seed for seed in arm.seeds if seed in other.seeds and seed in control.seeds]
        labels.append(f"{student}\n{name}@{k}")
        if not common:
            continue
        control, arm, other = (each.restrict(common) for each in (control, arm, other))
        begin = 0.0
        for side, (a, b), label in (
            (-1, (control, other), f"{_shown(reference)} → {_shown(placement)}"),
            (1, (arm, control), f"{_shown(placement)} → {_shown(method)}"),
        ):
            difference = paired(a, b, of)
            assert difference is not None
            colour, hatch = BARS[1] if side < 0 else BARS[0]
            named, at = label if place == 0 else None, np.array([place + 0.19 * side])
            _bars(axes, at, [difference.spread], width=0.36, bottom=begin, color=colour, hatch=hatch, label=named)
            rows.append(("c", student, f"{name}@{k}", label, *_numbers(difference.spread)))
            begin += 100 * difference.spread.value
            if side < 0:
                axes.plot([place - 0.37, place + 0.37], [begin, begin], color=INK, linewidth=0.8)
    axes.axhline(0, color=INK, linewidth=0.7)
    axes.set_xticks(np.arange(len(labels)), labels)
    axes.set_ylabel(f"points over {_shown(reference)}")
    axes.grid(axis="x", visible=False)
    axes.set_title(panel_title("c", "parts of the gain"))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.26 * (high - low))  # room for the legend, which is too wide beside the title
    axes.legend(loc="upper left", ncols=1, borderaxespad=0.1)


def _bars(axes: Axes, places: np.ndarray, values: Sequence[Spread], *, bottom: float = 0.0, **looks: object) -> None:
    """Bars in percent with their intervals, from ``bottom``."""
    heights = 100 * np.array([each.value for each in values])
    ends = 100 * np.array([[each.value - each.low for each in values], [each.high - each.value for each in values]])
    axes.bar(places, heights, bottom=bottom, edgecolor="white", linewidth=0, **looks)  # type: ignore[arg-type]
    axes.errorbar(
        places, bottom + heights, yerr=np.maximum(ends, 0), fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5
    )


def _on_one_set(arm: Sample, other: Sample, name: str) -> Difference:
    of_arm, of_other = (Sample(each.seeds, {name: each.mean[name]}, {}) for each in (arm, other))
    found = paired(of_arm, of_other)
    assert found is not None
    return found


def _numbers(value: Spread) -> tuple[float, float, float, int]:
    return 100 * value.value, 100 * value.low, 100 * value.high, value.num_seeds


def _shown(label: str) -> str:
    return SHOWN.get(label, label)
