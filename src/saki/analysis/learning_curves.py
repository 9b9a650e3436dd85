"""Learning curves of a study: accuracy by optimizer step, with intervals over seeds and problems."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from saki.analysis.publication import LINES, PAGE_WIDTH, Drawing, print_context
from saki.analysis.study_statistics import share_spread
from saki.analysis.study_tables import SHOWN, UNTRAINED, Arms
from saki.analysis.style import FAINT

_HEADER = ("student", "arm", "metric", "step", "percent", "low", "high", "seeds")
_METRICS = (("mean", "Mean"), ("passed", "Pass"))

Rows = list[tuple[object, ...]]


def draw_learning_curves(by_step: Mapping[int, Mapping[str, Arms]], k: int) -> Drawing:
    """Draw the macro averages by step, a row of panels a student; step 0 is the untrained student, where measured.

    Whiskers are 95% intervals over seeds and problems (problems alone with one seed); the teacher is a level line.

    Args:
        by_step: By optimizer step and student, the arms as evaluated after it.
        k: Samples a problem.

    Raises:
        ValueError: If there is no trained arm.
    """
    students = list(dict.fromkeys(student for arms in by_step.values() for student in arms))
    if not students:
        raise ValueError("no finished run of a trained arm; learning curves take a study in which some run is finished")
    rows: Rows = []
    labels = _labels(by_step)
    with print_context():
        height = 2.5 * len(students) + 0.17 * -(-len(labels) // 4) + 0.1
        figure = Figure(figsize=(PAGE_WIDTH, height), layout="constrained")
        panels = figure.subplots(len(students), len(_METRICS), squeeze=False)
        for student, pair in zip(students, panels, strict=True):
            for (of, name), axes in zip(_METRICS, pair, strict=True):
                of_student = {step: arms[student] for step, arms in by_step.items() if student in arms}
                _draw(axes, of_student, of, labels, (student, f"{name}@{k}"), rows)
                axes.set_title(f"{name}@{k}, {student}")
            pair[0].set_ylabel("macro average, %")
        handles = {
            label: handle
            for axes in panels.flat
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=4,
            handlelength=3.0,
            columnspacing=1.4,
        )
    return Drawing("learning_curves", figure, _HEADER, tuple(rows))


def _draw(
    axes: Axes, by_step: Mapping[int, Arms], of: str, labels: list[str], about: tuple[str, str], rows: Rows
) -> None:
    student, metric = about
    last = by_step[max(by_step)]
    teacher, untrained = (last.get(label) for label in UNTRAINED)
    begin = share_spread(getattr(untrained, of)) if untrained is not None else None
    if teacher is not None:
        level = share_spread(getattr(teacher, of))
        axes.axhline(100 * level.value, color=FAINT, linewidth=1.0, linestyle=(0, (6, 2)), label="Teacher")
        rows.append(
            (student, "teacher", metric, "", 100 * level.value, 100 * level.low, 100 * level.high, level.num_seeds)
        )
    if begin is not None:
        rows.append(
            (student, "student", metric, 0, 100 * begin.value, 100 * begin.low, 100 * begin.high, begin.num_seeds)
        )
    # Whiskers of many arms would hide one another at the steps that all arms share.
    room = 0.008 * max(by_step)
    for number, label in enumerate(labels):
        colour, dash, marker = LINES[number % len(LINES)]
        found = {
            step: share_spread(getattr(arms[label], of)) for step, arms in sorted(by_step.items()) if label in arms
        }
        if not found:
            continue
        points = ({0: begin} if begin is not None else {}) | found
        steps, values = np.array(list(points)), list(points.values())
        middles = 100 * np.array([each.value for each in values])
        ends = 100 * np.array([[each.value - each.low for each in values], [each.high - each.value for each in values]])
        shift = room * (number - (len(labels) - 1) / 2) * min(1.0, 6 / max(len(labels), 1))
        axes.errorbar(
            np.where(steps > 0, steps + shift, 0.0), middles, yerr=np.maximum(ends, 0), color=colour, linestyle=dash,
            marker=marker, markersize=3.6, capsize=1.5, elinewidth=0.7, linewidth=1.2, label=SHOWN.get(label, label),
        )  # fmt: skip
        rows += [
            (student, label, metric, step, 100 * each.value, 100 * each.low, 100 * each.high, each.num_seeds)
            for step, each in found.items()
        ]
    axes.set_xlabel("optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def _labels(by_step: Mapping[int, Mapping[str, Arms]]) -> list[str]:
    found = (label for arms in by_step.values() for each in arms.values() for label in each)
    return [label for label in dict.fromkeys(found) if label not in UNTRAINED]
