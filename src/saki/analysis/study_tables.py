"""Tables of a study in the form of the paper's Tables 1, 2, 6 and 8, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from saki.analysis.study_results import Sample
from saki.analysis.study_statistics import Difference, Spread, paired, share_spread
from saki.files import write_text

SHOWN = {
    "teacher": "Teacher",
    "student": "Student",
    "opd": "OPD",
    "exopd": "ExOPD",
    "skd": "SKD",
    "trb": "TRB",
    "saki": "SAKI",
    "random_tm": "Random-TM",
    "tv_weighted_tm": "TV-Weighted-TM",
    "teacher_sampled": "Teacher-sampled",
}
"""How labels read in tables; others stand as they are."""

UNTRAINED = ("teacher", "student")
PLACEMENTS = ("trb", "random_tm", "tv_weighted_tm", "saki")
CORRECTIONS = ("trb", "teacher_sampled", "saki")

_OWN_FILE = re.compile(
    r"(table1_mean|table2_pass|table6_placement|table8_corrections|differences|steps)(_.+)?\.(md|tex|csv)"
)

FEW_SEEDS = 5
"""With fewer seeds a standard deviation between seeds says little."""

Arms = Mapping[str, Sample]
"""By label, the arms of one student, the untrained models among them."""


@dataclass(frozen=True)
class Cell:
    """A cell: text, and whether it is the best or second best of its column."""

    text: str
    rank: int = 0


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: File name without ending.
        caption: What it shows.
        header: Column titles; the first column holds labels.
        rows: Cells of each row.
        notes: Sentences below.
    """

    name: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def markdown(self) -> str:
        """As Markdown; the best of a column in bold, the second underlined."""
        titles = [title.replace("|", "\\|") for title in self.header]
        lines = [f"**{self.caption}**", "", "| " + " | ".join(titles) + " |"]
        lines.append("| --- |" + " ---: |" * (len(self.header) - 1))
        for row in self.rows:
            cells = [{1: f"**{cell.text}**", 2: f"<u>{cell.text}</u>"}.get(cell.rank, cell.text) for cell in row]
            lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
        lines += ["", *(f"{note}  " for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """As a LaTeX table environment (booktabs)."""
        columns = "l" + "r" * (len(self.header) - 1)
        lines = [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_tex(self.caption)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
        ]
        lines += ["\\toprule", " & ".join(map(_tex, self.header)) + " \\\\", "\\midrule"]
        for row in self.rows:
            marked = [{1: "\\textbf{%s}", 2: "\\underline{%s}"}.get(cell.rank, "%s") % _tex(cell.text) for cell in row]
            lines.append(" & ".join(marked) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in self.notes), "\\end{table}"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """As CSV, without marks."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([cell.text for cell in row] for row in self.rows)
        return text.getvalue()


def write_tables(folder: Path, tables: Sequence[Table]) -> list[Path]:
    """Write each table as ``.md``, ``.tex`` and ``.csv``; tables of an earlier state of the study are taken away.

    Returns:
        The Markdown files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
            written.append(folder / f"{table.name}.{ending}")
            write_text(written[-1], text)
    for path in folder.iterdir():
        if _OWN_FILE.fullmatch(path.name) and path not in written:
            path.unlink()
    return [path for path in written if path.suffix == ".md"]


def study_tables(students: Mapping[str, Arms], reference: str, k: int) -> list[Table]:
    """All tables that the arms allow.

    Args:
        students: By student, its arms.
        reference: Label that the others are compared with.
        k: Samples a problem.
    """
    tables = [
        _main_table(students, "mean", f"Mean@{k}", "table1_mean"),
        _main_table(students, "passed", f"Pass@{k}", "table2_pass"),
    ]
    for labels, name, caption in (
        (PLACEMENTS, "table6_placement", "Placement of teacher-mode supervision"),
        (CORRECTIONS, "table8_corrections", "Supervision at corrections"),
    ):
        tables += _short_tables(students, labels, name, caption, k)
    tables += _difference_tables(students, reference, k)
    return tables


def steps_tables(by_step: Mapping[int, Mapping[str, Arms]], k: int) -> list[Table]:
    """How the macro average goes with the steps, a table a student; none where there is but one step.

    Args:
        by_step: By optimizer step and student, the arms as evaluated after it.
        k: Samples a problem.
    """
    steps = sorted(by_step)
    students = by_step[steps[-1]] if len(steps) > 1 else {}
    tables = []
    for student, arms in students.items():
        labels = [label for label in arms if label not in UNTRAINED]
        if not labels:
            continue
        values = {
            (label, step, of): share_spread(getattr(by_step[step][student][label], of))
            for label in labels
            for step in steps
            for of in ("mean", "passed")
            if label in by_step[step].get(student, {})
        }
        columns = [(step, of) for of in ("mean", "passed") for step in steps]
        ranks = [
            _ranks({label: values[label, *column].value for label in labels if (label, *column) in values})
            for column in columns
        ]
        rows = []
        for label in labels:
            cells = [
                Cell(f"{_percent(values[label, *column])} {_interval(values[label, *column])}", rank.get(label, 0))
                if (label, *column) in values
                else Cell("-")
                for column, rank in zip(columns, ranks, strict=True)
            ]
            rows.append((Cell(SHOWN.get(label, label)), *cells, Cell(str(len(arms[label].seeds)))))
        titles = {"mean": f"Mean@{k}", "passed": f"Pass@{k}"}
        header = ("Method", *(f"{titles[of]}, step {step}" for step, of in columns), "seeds")
        caption = f"Macro average (%) by step, with 95% intervals over seeds and problems, {student}"
        tables.append(Table(_own_name("steps", student, students), caption, header, tuple(rows)))
    return tables


def _main_table(students: Mapping[str, Arms], of: str, metric: str, name: str) -> Table:
    first = next(iter(next(iter(students.values())).values()))
    sets = list(getattr(first, of))
    rows: list[tuple[Cell, ...]] = []
    counts = set()
    for student, arms in students.items():
        values = {
            label: [share_spread({each: getattr(arm, of)[each]}) for each in sets] + [share_spread(getattr(arm, of))]
            for label, arm in arms.items()
        }
        trained = [label for label in arms if label not in UNTRAINED]
        counts |= {arms[label].seeds for label in trained}
        ranks = [_ranks({label: values[label][column].value for label in trained}) for column in range(len(sets) + 1)]
        for label, columns in values.items():
            shown = SHOWN.get(label, label) + (f" ({student})" if label == "student" or len(students) > 1 else "")
            cells = [Cell(_percent(each), ranks[i].get(label, 0)) for i, each in enumerate(columns)]
            interval = Cell(_interval(columns[-1]))
            rows.append((Cell(shown), *cells, interval, Cell(str(columns[-1].num_seeds))))
    notes = [
        "Average is the mean over sets; its 95% interval is over seeds and problems (problems alone with one seed).",
        *(["Best and second best of the trained methods are marked."] if rows else []),
    ]
    if len(counts) > 1:
        notes.append("Methods differ in their seeds: the study is not finished, or runs failed.")
    header = ("Method", *sets, "Average", "95% interval", "seeds")
    return Table(name, f"{metric} accuracy (%)", header, tuple(rows), tuple(notes))


def _short_tables(students: Mapping[str, Arms], labels: Sequence[str], name: str, caption: str, k: int) -> list[Table]:
    tables = []
    for student, arms in students.items():
        present = [label for label in labels if label in arms]
        if len(present) < 2:
            continue
        rows = []
        for label in present:
            mean, passed = share_spread(arms[label].mean), share_spread(arms[label].passed)
            cells = (_percent(mean, 2), _interval(mean), _percent(passed, 2), _interval(passed), str(mean.num_seeds))
            rows.append((Cell(SHOWN.get(label, label)), *map(Cell, cells)))
        header = ("Method", f"Mean@{k}", "95% interval", f"Pass@{k}", "95% interval", "seeds")
        tables.append(Table(_own_name(name, student, students), f"{caption}, {student}", header, tuple(rows)))
    return tables


def _difference_tables(students: Mapping[str, Arms], reference: str, k: int) -> list[Table]:
    tables = []
    for student, arms in students.items():
        trained = [label for label in arms if label not in UNTRAINED]
        if len(trained) < 2:
            continue
        pairs = [(label, reference) for label in trained if label != reference and reference in arms]
        pairs += [("saki", label) for label in (*PLACEMENTS, "opd") if "saki" in arms and label in trained]
        pairs = [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]
        rows, needed = [], []
        for label, other in pairs:
            mean, passed = (paired(arms[label], arms[other], of) for of in ("mean", "passed"))
            if mean is None or passed is None:
                continue
            needed.append(mean)
            cells = [f"{SHOWN.get(label, label)} - {SHOWN.get(other, other)}"]
            for each in (mean, passed):
                cells += [f"{100 * each.spread.value:+.2f}", _interval(each.spread), _seed_interval(each)]
            cells += [str(mean.num_seeds_for_a_point or "?"), str(mean.spread.num_seeds)]
            rows.append(tuple(map(Cell, cells)))
        if not rows:
            continue
        header = (
            "Difference",
            *(title for metric in ("Mean", "Pass") for title in (f"{metric}@{k}", "seeds and problems", "seeds alone")),
            "seeds for 1 point",
            "seeds",
        )
        tables.append(
            Table(
                _own_name("differences", student, students),
                f"Differences paired by seed and problem, macro average in points, {student}",
                header,
                tuple(rows),
                (
                    "Intervals are 95%: over seeds and problems as crossed random effects, and over seeds with the "
                    "problems as they are (t).",
                    power_note(needed, arms, trained, k),
                ),
            )
        )
    return tables


def power_note(differences: Sequence[Difference], arms: Arms, trained: Sequence[str], k: int) -> str:
    """What the noise seen means for the number of seeds."""
    single = [value.seed_sd for value in (share_spread(arms[label].mean) for label in trained) if value.num_seeds > 1]
    counts = [each.num_seeds_for_a_point for each in differences]
    least = min((each.spread.num_seeds for each in differences), default=0)
    known = sorted(count for count in counts if count is not None)
    if not single or not known:
        return "With one seed nothing can be said of run-to-run noise; run at least two."
    needed = str(known[0]) if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
    middle = math.ceil(median(known))
    return (
        f"Between seeds Mean@{k} of a method has a standard deviation of {100 * float(np.mean(single)):.2f} points. "
        f"To find a difference of 1 point with 80% power at 5%, paired by seed, {needed} seeds are "
        f"needed (median {middle})."
        + (" From so few seeds the noise itself is known badly." if least < FEW_SEEDS else "")
    )


def _own_name(name: str, student: str, students: Mapping[str, Arms]) -> str:
    return name if len(students) == 1 else f"{name}_{student}"


def _ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the best, 2 for the second best, by the values as shown; nothing is marked where all are equal.

    Equal values share a rank and use up those behind it: with two that are best there is no second.
    """
    shown = {label: round(100 * value, 1) for label, value in values.items()}
    if len(set(shown.values())) < 2:
        return {}
    ranks = {label: 1 + sum(other > value for other in shown.values()) for label, value in shown.items()}
    return {label: rank for label, rank in ranks.items() if rank <= 2}


def _percent(value: Spread, digits: int = 1) -> str:
    return f"{100 * value.value:.{digits}f}"


def _interval(value: Spread) -> str:
    return f"[{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _seed_interval(value: Difference) -> str:
    if np.isnan(value.seeds_low):
        return "one seed"
    return f"[{100 * value.seeds_low:.1f}, {100 * value.seeds_high:.1f}]"


def _tex(text: str) -> str:
    for plain, escaped in (
        ("\\", "\\textbackslash{}"),
        ("_", "\\_"),
        ("%", "\\%"),
        ("&", "\\&"),
        ("#", "\\#"),
        ("|", "\\textbar{}"),
    ):
        text = text.replace(plain, escaped)
    return text
