"""The report's section on evaluation: student before and after beside the teacher, as table and as picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from saki.analysis.page import figure_block, missing, paragraph, section
from saki.analysis.style import BLUE, FAINT, INK, PAPER, VERMILION, figure_context, figure_to_svg

LABELS = {"before": "student before", "after": "student after", "teacher": "teacher"}
"""Keys of ``evaluation.json`` and how they are shown; other keys come after these under their own name."""

TITLE = "Before and after, beside the teacher"
_METRICS = ("mean_at_k", "pass_at_k")
_LOOKS = {"before": (FAINT, "o", PAPER), "after": (BLUE, "o", BLUE), "teacher": (VERMILION, "D", VERMILION)}
_OTHER_LOOK = (INK, "s", INK)

Results = Mapping[str, Mapping[str, Any]]


def read_evaluation(path: Path) -> dict[str, Any] | None:
    """Read ``evaluation.json``, or None where there is no such file.

    Raises:
        ValueError: If the file is not a JSON object.
    """
    if not path.is_file():
        return None
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable JSON ({error}); evaluate again") from error
    if not isinstance(results, dict):
        raise ValueError(f"{path} holds {type(results).__name__}, expected an object; evaluate again")
    return results


def evaluation_section(results: Results | None, *, title: str = TITLE, expected: Sequence[str] = tuple(LABELS)) -> str:
    """Section with table and picture; where there are no results it says so.

    Args:
        results: Key (``before``, ``after``, ``teacher``) to the JSON of an evaluation result.
        title: Heading.
        expected: Keys that are named where they are missing.

    Raises:
        ValueError: If a result lacks a part.
    """
    shown = {key: results[key] for key in _ordered(results or {}) if results and results[key]}
    if not shown:
        return section(title, missing("Not there: evaluation.json holds no result for this run."))
    try:
        ks = sorted({result["average"]["k"] for result in shown.values()})
        names = list(dict.fromkeys(name for result in shown.values() for name in result["benchmarks"]))
        table = _table(shown, names, ks)
        with figure_context():
            svg = figure_to_svg(_draw(shown, names, ks), "evaluation", "Mean@k and Pass@k of each benchmark")
        notes = [_note(key, result) for key, result in shown.items()]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"an evaluation result lacks or misnames {error}; expected the JSON of saki.evaluation.EvaluationResult"
        ) from error
    absent = [LABELS.get(key, key) for key in expected if key not in shown]
    notes += [f"Not there: {', '.join(absent)}."] if absent else []
    if any(set(result["benchmarks"]) != set(names) for result in shown.values()) or len(ks) > 1:
        notes.append("The results differ in their benchmarks or in k, so their averages cannot be compared.")
    caption = "Bars are 95% bootstrap intervals over problems; they do not cover the run-to-run noise of training."
    return section(title, table, *(paragraph(note, "faint") for note in notes), figure_block(svg, caption))


def _ordered(results: Results) -> list[str]:
    return [key for key in LABELS if key in results] + [key for key in results if key not in LABELS]


def _table(shown: Results, names: list[str], ks: list[int]) -> str:
    k = ks[0] if len(ks) == 1 else "k"
    top = "".join(f'<th class="number" colspan="2">{escape(LABELS.get(key, key))}</th>' for key in shown)
    units = f'<th class="number">Mean@{k}</th><th class="number">Pass@{k}</th>' * len(shown)
    body = "\n".join(_row(name, [result["benchmarks"].get(name) for result in shown.values()]) for name in names)
    average = _row("macro average", [result["average"] for result in shown.values()], "average")
    return (
        f'<div class="scroll"><table>\n<thead><tr><th></th>{top}</tr>\n<tr><th>percent</th>{units}</tr></thead>\n'
        f"<tbody>\n{body}\n{average}\n</tbody></table></div>"
    )


def _row(name: str, entries: list[Mapping[str, Any] | None], kind: str = "") -> str:
    cells = "".join(
        '<td class="number">-</td>'
        if entry is None
        else f'<td class="number">{100 * entry[metric]:.1f}<small>{_interval(entry, metric)}</small></td>'
        for entry in entries
        for metric in _METRICS
    )
    return f"<tr{f' class={kind!r}' if kind else ''}><th>{escape(name)}</th>{cells}</tr>"


def _interval(entry: Mapping[str, Any], metric: str) -> str:
    low, high = entry["ci95"][metric]
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _note(key: str, result: Mapping[str, Any]) -> str:
    sets = result["benchmarks"].values()
    samples = sum(each["num_problems"] * each["num_samples"] for each in sets)
    cut = sum(each["truncated"] * each["num_problems"] * each["num_samples"] for each in sets) / max(samples, 1)
    timeouts = sum(each["timeouts"] for each in sets)
    note = f"{LABELS.get(key, key)}: {samples:,} samples, {100 * cut:.1f}% of them cut by the length cap"
    note += f", {timeouts} gradings ran out of time and count as wrong" if timeouts else ""
    failed = sum(each.get("failed", 0) for each in sets)
    return note + (f", {failed} ended in NaN and count as wrong." if failed else ".")


def _draw(shown: Results, names: list[str], ks: list[int]) -> Figure:
    """One line a benchmark and a mark a model, Mean@k on the left and Pass@k on the right."""
    rows = [*names, "macro average"]
    figure = Figure(figsize=(7.2, 1.1 + 0.34 * len(rows)), layout="constrained")
    left = figure.add_subplot(1, 2, 1)
    panels = (left, figure.add_subplot(1, 2, 2, sharey=left))
    k = ks[0] if len(ks) == 1 else "k"
    spread = 0.22 if len(shown) > 1 else 0.0
    for axes, metric, title in zip(panels, _METRICS, (f"Mean@{k}", f"Pass@{k}"), strict=True):
        for order, (key, result) in enumerate(shown.items()):
            entries = [*(result["benchmarks"].get(name) for name in names), result["average"]]
            there = [(row, entry) for row, entry in enumerate(entries) if entry is not None]
            values = [entry[metric] for _, entry in there]
            # A bootstrap interval need not hold the estimate itself; a bar has no negative length.
            arms = [
                [max(value - entry["ci95"][metric][0], 0.0) for value, (_, entry) in zip(values, there, strict=True)],
                [max(entry["ci95"][metric][1] - value, 0.0) for value, (_, entry) in zip(values, there, strict=True)],
            ]
            offset = spread * (2 * order / max(len(shown) - 1, 1) - 1)
            colour, marker, face = _LOOKS.get(key, _OTHER_LOOK)
            axes.errorbar(
                values,
                [row + offset for row, _ in there],
                xerr=arms,
                fmt=marker,
                color=colour,
                markerfacecolor=face,
                markersize=5,
                elinewidth=1.3,
                label=LABELS.get(key, key),
            )
        axes.set_title(title)
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(axis="y", visible=False)
        axes.axhline(len(names) - 0.5, color=FAINT, linewidth=0.8)
    panels[1].set_xticks([0.2, 0.4, 0.6, 0.8, 1.0])  # the other panel's 100% stands beside its 0%
    left.set_yticks(range(len(rows)), rows)
    left.set_ylim(len(rows) - 0.5, -0.5)
    panels[1].tick_params(labelleft=False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure
