"""The report of several runs, or of a study: curves side by side, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saki.analysis.evaluation_section import evaluation_section, read_evaluation
from saki.analysis.learning_curves import draw_learning_curves
from saki.analysis.metrics_file import merge_steps, read_metrics
from saki.analysis.page import figure_block, missing, page, paragraph, section, table
from saki.analysis.report import CONFIG, EVALUATION, METRICS
from saki.analysis.run_facts import read_settings
from saki.analysis.side_by_side import MOST_LINES, Line, Panel, draw_side_by_side, last_values, panels_shown, smoothing
from saki.analysis.study_folder import StudyFolder, read_study_folder
from saki.analysis.study_tables import SHOWN, Table, steps_tables, study_tables
from saki.analysis.style import figure_context, figure_to_svg
from saki.files import write_text

_PLACES = ("output_dir", "logging_dir", "run_name", "out")
"""Settings that differ between any two runs and say nothing about them."""
_LONGEST_VALUE = 80
_MARKS = {1: " ▲", 2: " △"}


def write_comparison_report(folders: Sequence[Path], path: Path) -> Path:
    """Write the report of several runs, whole or not at all.

    Args:
        folders: Run folders; the curves have their order.
        path: The page.

    Returns:
        The path written.

    Raises:
        ValueError: If a folder is not that of a run that has logged a step, or if a file in it is damaged.
    """
    names = short_names(folders)
    lines: list[Line] = []
    notes: list[str] = []
    results: dict[str, Mapping[str, Any]] = {}
    for folder, name in zip(folders, names, strict=True):
        if not folder.is_dir():
            raise ValueError(f"no run folder at {folder}; expected the folder that a training run wrote")
        rows = read_metrics(folder / METRICS)
        notes += [f"{name}: {rows.note}."] if rows.note else []
        lines.append(Line(name, (merge_steps(rows),), read_settings(folder / CONFIG) or {}))
        after = _of_trained(folder)
        results |= {name: after} if after else {}
    accuracy = evaluation_section(results, title="Accuracy of the trained students", expected=names) if results else ""
    sections = [
        _overview(lines, notes),
        _differences(lines),
        accuracy
        or section(
            "Accuracy of the trained students",
            missing(f"Not there: no run has an {EVALUATION}, nor one of saki eval in RUN/evaluation."),
        ),
        *_curves(lines),
        _last_step(lines),
    ]
    write_text(path, page(f"{len(lines)} runs side by side", ", ".join(names), sections))
    return path


def write_study_report(folder: Path, path: Path) -> Path:
    """Write the report of a study, whole or not at all: its tables, and the curves of its arms over their seeds.

    Args:
        folder: Folder of the study, which may be running.
        path: The page.

    Returns:
        The path written.

    Raises:
        ValueError: If the folder is not that of a study with a run that has logged a step or is finished, or if a file
            in it is damaged.
    """
    study = read_study_folder(folder)
    if not study.labels:
        raise ValueError(f"{folder} holds no run that has logged a step or is finished; run the study first")
    several = len({student for student, _ in study.runs}) > 1
    lines = []
    for (student, label), seeds in study.runs.items():
        settings = [read_settings(run / CONFIG) or {} for run in seeds.values()]
        shown = SHOWN.get(label, label) + (f", {student}" if several else "")
        lines.append(Line(shown, tuple(study.metrics(student, label).values()), _common(settings)))
    order = {label: place for place, label in enumerate(study.labels)}
    arms = sorted(zip(study.runs, lines, strict=True), key=lambda pair: (pair[0][0], order[pair[0][1]]))
    lines = [line for _, line in arms]
    sections = [
        _overview(lines, study.notes, seeds=True),
        _differences(lines),
        *_accuracy(study),
        *_curves(lines),
        _last_step(lines),
    ]
    lead = f"{', '.join(study.students)}; {len(study.labels)} arms, compared with {study.reference}"
    write_text(path, page(f"Study report: {folder.resolve().name}", lead, sections))
    return path


def _of_trained(folder: Path) -> Mapping[str, Any] | None:
    """What a run's student scored after training: of saki demo, or of saki eval into RUN/evaluation."""
    after = (read_evaluation(folder / EVALUATION) or {}).get("after")
    results = list((read_evaluation(folder / "evaluation" / EVALUATION) or {}).values())
    return after or (results[0] if len(results) == 1 else None)


def short_names(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: as many last parts of its path as tell all of them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"a run is named twice among {', '.join(map(str, folders))}; name each once")


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """By dotted name, the values of settings that are not equal in all, empty where one has none."""
    names = dict.fromkeys(name for each in settings for name in each if name.rpartition(".")[2] not in _PLACES)
    table = {name: [each.get(name, "") for each in settings] for name in names}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def _common(settings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Settings in which all seeds of an arm agree."""
    first = settings[0] if settings else {}
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in settings)}


def _overview(lines: Sequence[Line], notes: Sequence[str], *, seeds: bool = False) -> str:
    header = ("run" if not seeds else "arm", "method", *(("seeds",) if seeds else ()), "last step", "commit")
    rows = []
    for line in lines:
        method = next((value for name, value in line.settings.items() if name.rpartition(".")[2] == "method"), "-")
        count = (str(len(line.runs)),) if seeds else ()
        rows.append((line.name, method, *count, str(line.last_step or "-"), line.settings.get("commit", "-")))
    return section("What was compared", table(header, rows), *(paragraph(note, "faint") for note in notes))


def _differences(lines: Sequence[Line]) -> str:
    found = differing([line.settings for line in lines])
    title = "Settings that differ"
    if not any(line.settings for line in lines):
        return section(title, missing(f"Not there: no run has a {CONFIG}."))
    if not found:
        return section(title, paragraph("None: all settings that were recorded are equal."))
    rows = [(line.name, *(_cut(values[place]) for values in found.values())) for place, line in enumerate(lines)]
    return section(title, table(("", *found), rows))


def _accuracy(study: StudyFolder) -> list[str]:
    if not study.scores:
        return [section("Accuracy", missing("Not there: no run is finished."))]
    k = study.scores[0].num_samples
    chosen = study.labels[:MOST_LINES]
    by_step = {step: study.arms(step, chosen) for step in study.steps()}
    blocks = []
    if any(by_step.values()):
        with figure_context():
            drawing = draw_learning_curves(by_step, k)
        svg = figure_to_svg(drawing.figure, "learning", "Macro averages of Mean@k and Pass@k by optimizer step")
        caption = "Whiskers are 95% intervals over seeds and problems; of problems alone where there is one seed."
        blocks.append(figure_block(svg, caption))
        blocks.append(_left_out(len(study.labels)))
    sections = [section("Accuracy by step", *blocks)] if blocks else []
    students = study.arms()
    tables = study_tables(students, study.reference, k) if students else []
    tables += steps_tables({step: study.arms(step) for step in study.steps()}, k)
    return sections + [_table_section(each) for each in tables]


def _curves(lines: Sequence[Line]) -> list[str]:
    drawn = lines[:MOST_LINES]
    panels = panels_shown(drawn)
    sections = []
    for begin in range(0, len(panels), 2):
        pair = panels[begin : begin + 2]
        first, *second = (panel.title for panel in pair)
        title = " and ".join([first, *(text[0].lower() + text[1:] if text[1:2].islower() else text for text in second)])
        with figure_context():
            svg = figure_to_svg(draw_side_by_side(drawn, pair), f"curves{begin}", title)
        block = figure_block(svg, _caption(drawn, pair))
        sections.append(section(title, block, _left_out(len(lines))))
    return sections


def _caption(lines: Sequence[Line], panels: Sequence[Panel]) -> str:
    several = any(len(line.runs) > 1 for line in lines)
    shading = "Shading: 95% t interval over seeds. " if several else ""
    window = smoothing(lines)
    shading += f"Running means over {window} values. " if window > 1 else ""
    unit = "; ".join(f"{panel.title}: {panel.unit}" for panel in panels)
    return f"{shading}{unit}."


def _last_step(lines: Sequence[Line]) -> str:
    panels = panels_shown(lines)
    if not panels:
        return section("At the last step", missing("Not there: nothing was logged."))
    rows = [(line.name, str(line.last_step or "-"), *last_values(line, panels)) for line in lines]
    several = any(len(line.runs) > 1 for line in lines)
    note = "± is half of the 95% t interval over seeds." if several else ""
    return section("At the last step", table(("", "step", *(p.title for p in panels)), rows), paragraph(note, "faint"))


def _left_out(count: int) -> str:
    rest = count - MOST_LINES
    return paragraph(f"{rest} more are in the tables and not in the picture.", "faint") if rest > 0 else ""


def _table_section(shown: Table) -> str:
    rows = [tuple(cell.text + _MARKS.get(cell.rank, "") for cell in row) for row in shown.rows]
    marked = any(cell.rank == 1 for row in shown.rows for cell in row)
    notes = [*shown.notes, *(["▲ marks the best of the trained methods, △ the second best."] if marked else [])]
    return section(shown.caption, table(shown.header, rows), *(paragraph(note, "faint") for note in notes))


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + "…"
