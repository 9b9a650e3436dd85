"""Tables of a probe comparison: Table 7, and the figures of Fig. 2 by conflict quartile."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

from saki.analysis.probe_comparison import CONTRAST, QUARTILES, Effect, ProbeComparison
from saki.analysis.study_tables import SHOWN, Cell, Table, write_tables
from saki.files import write_text

_NOTE = (
    "Each prompt weighs the same; 95% intervals from {} resamples of prompts, which say nothing of noise between runs."
)


def probe_tables(comparison: ProbeComparison) -> list[Table]:
    """Table 7 (differences by step), and differences by conflict quartile with the Q4-Q1 contrast (Fig. 2 b, c).

    C_1 and C_k are in percentage points, divergences and entropy in nats. With several pairs of runs, +/- is the
    standard deviation between pairs.
    """
    k = comparison.top_k
    title = " - ".join(SHOWN.get(name, name) for name in (comparison.measured, comparison.reference))
    note = _NOTE.format(f"{comparison.num_resamples:,}")
    shown = {
        "c1": "C1 (pp)",
        "c_top": f"C{k} (pp)",
        "kl_teacher_student": "KL(T||S)",
        "entropy": "H(S)",
    }
    rows = []
    for step in comparison.steps:
        effects = [comparison.effect(step, metric) for metric in shown]
        rows.append((Cell(str(step)), *(Cell(_text(each)) for each in effects), Cell(str(effects[0].num_seeds))))
    first = comparison.effect(comparison.steps[0], "c1")
    size = f"{first.num_positions} positions of {first.num_prompts} prompts."
    table7 = Table(
        "table7_probe",
        f"Prompt-equal paired differences {title} on the fixed-prefix probe",
        ("Step", *shown.values(), "seeds"),
        tuple(rows),
        (note, size),
    )
    quartiles = []
    for step in comparison.steps:
        for metric, name in (("c1", "C1"), ("c_top", f"C{k}"), ("c_rest", f"C{k} - C1")):
            cells = [Cell(_text(comparison.effect(step, metric, group))) for group in (*QUARTILES, CONTRAST)]
            quartiles.append((Cell(f"{step}, {name}"), *cells))
    by_conflict = Table(
        "figure2_quartiles",
        f"Differences {title} by quartile of the initial KL(T||S), percentage points",
        ("Step, figure", *QUARTILES, CONTRAST),
        tuple(quartiles),
        (note, "Q1 has the lowest conflict, Q4 the highest."),
    )
    return [table7, by_conflict]


def write_comparison(folder: Path, comparison: ProbeComparison) -> list[Path]:
    """Write tables (``.md``, ``.tex``, ``.csv``) and every effect (``effects.csv``); returns the Markdown files."""
    paths = write_tables(folder, probe_tables(comparison))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([each.name for each in dataclasses.fields(Effect)])
    writer.writerows(dataclasses.astuple(effect) for effect in comparison.effects)
    write_text(folder / "effects.csv", text.getvalue())
    return paths


def _text(effect: Effect) -> str:
    """A difference with its interval: two decimals of percentage points, three of nats."""
    points = effect.metric.startswith("c")
    scale, digits = (100, 2) if points else (1, 3)
    value, low, high = (f"{scale * each:+.{digits}f}" for each in (effect.value, effect.low, effect.high))
    spread = f" +/- {scale * effect.seed_sd:.{digits}f}" if effect.num_seeds > 1 else ""
    return f"{value} [{low}, {high}]{spread}"
