"""The report of a run: one self-contained HTML file made from the files of its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from saki.analysis.evaluation_chart import EVALUATION_CHART
from saki.analysis.evaluation_section import evaluation_section, read_evaluation
from saki.analysis.figures import CHARTS, Chart, Rows, has_values
from saki.analysis.metrics_file import merge_steps, read_metrics
from saki.analysis.page import facts, figure_block, folded, missing, page, preformatted, section
from saki.analysis.rollout_samples import Decode, LinkTarget, samples_section
from saki.analysis.run_facts import RunFacts, read_run_facts
from saki.analysis.style import figure_context, figure_to_svg
from saki.analysis.trace.page import TRACE_PAGE, trace_link
from saki.files import write_text

REPORT, CONFIG, METRICS, EVALUATION, ROLLOUTS = (
    "report.html",
    "config.resolved.yaml",
    "metrics.jsonl",
    "evaluation.json",
    "rollouts",
)


def write_report(
    run_dir: Path,
    *,
    evaluation: Mapping[str, Any] | None = None,
    decode: Decode | None = None,
    path: Path | None = None,
) -> Path:
    """Write ``report.html`` into a run folder, whole or not at all.

    The file needs no network and runs no script; it follows the reader's light or dark theme and prints. What a
    run did not log is named as not there; nothing is filled in.

    Args:
        run_dir: Folder of a run. Read where present: ``config.resolved.yaml``, ``metrics.jsonl``,
            ``evaluation.json`` and ``rollouts/*.parquet``; samples link to ``trace.html`` where it is there.
        evaluation: ``{"before": ..., "after": ..., "teacher": ...}``, each the JSON of an evaluation result or
            None; read from ``evaluation.json`` if None.
        decode: Token ids to text, for the samples; without it their ids are shown.
        path: The page; ``report.html`` in the run folder if None. Links to the trace page are of the run folder.

    Returns:
        Path of the report.

    Raises:
        ValueError: If the folder is missing or holds neither metrics nor results, or if a file in it is damaged.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise ValueError(f"no run folder at {run_dir}; expected the folder that a training run wrote")
    results = read_evaluation(run_dir / EVALUATION) if evaluation is None else evaluation
    if not (run_dir / METRICS).is_file() and not results:
        raise ValueError(
            f"{run_dir} holds neither {METRICS} nor {EVALUATION}, so there is nothing to report; "
            "expected the folder of a run that has logged a step"
        )
    run_facts = read_run_facts(run_dir / CONFIG)
    rows, notes = _rows(run_dir / METRICS)
    method = run_facts.method if run_facts else None
    lead = f"{run_dir.resolve().name}" + (f", {len(rows)} steps logged, last step {rows[-1]['step']}" if rows else "")
    sections = [
        _run_section(run_facts, notes),
        evaluation_section(results),
        *(_chart_section(chart, rows) for chart in (EVALUATION_CHART, *CHARTS)),
        samples_section(run_dir / ROLLOUTS, decode, _links(run_dir, path)),
    ]
    path = path or run_dir / REPORT
    write_text(path, page(f"Run report: {method or 'method not recorded'}", lead, sections))
    return path


def _links(run_dir: Path, path: Path | None) -> LinkTarget | None:
    """Where samples lead: into the run's trace page, as seen from the report; None without such a page."""
    if not (run_dir / TRACE_PAGE).is_file():
        return None
    if path is None or path.parent.resolve() == run_dir.resolve():
        return trace_link
    way = quote(Path(os.path.relpath(run_dir.resolve(), path.parent.resolve())).as_posix())
    return lambda file, row: f"{way}/{trace_link(file, row)}"


def _rows(path: Path) -> tuple[Rows, list[str]]:
    """Merged rows, and sentences on what is missing."""
    if not path.is_file():
        return [], [f"Not there: {METRICS}, so no chart can be drawn."]
    if not path.read_bytes().strip():
        return [], [f"{METRICS} is empty: the run has logged no step yet."]
    rows = read_metrics(path)
    return merge_steps(rows), [f"Note: {rows.note}."] if rows.note else []


def _run_section(run_facts: RunFacts | None, notes: list[str]) -> str:
    blocks = [missing(note) for note in notes]
    if run_facts is None:
        return section("What was run", missing(f"Not there: {CONFIG}."), *blocks)
    whole = folded("The whole configuration", preformatted(run_facts.text))
    return section("What was run", facts(run_facts.pairs), whole, *blocks)


def _chart_section(chart: Chart, rows: Rows) -> str:
    names = chart.names(rows)
    absent = [name for name in names if not has_values(rows, name)]
    if len(absent) == len(names):
        return section(chart.title, missing(f"Not there: the run did not log {', '.join(absent)}."))
    with figure_context():
        svg = figure_to_svg(chart.draw(rows), chart.name, chart.title)
    block = figure_block(svg, chart.describe(rows))
    return section(chart.title, block, missing(f"Not logged: {', '.join(absent)}.") if absent else "")
