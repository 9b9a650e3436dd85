"""The table of results side by side: student before, student after, teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saki.evaluation.metrics import EvaluationResult

Results = Mapping[str, EvaluationResult | Mapping[str, Any]]
"""Label (``"before"``, ``"after"``, ``"teacher"``) to a result or its JSON; columns come in this order."""

TABLE_WIDTH = 100
"""Most columns of characters of :func:`text_table` with up to three results."""

_METRICS = ("mean_at_k", "pass_at_k")
_CELL = 11
_NAME_WIDTH = 24


def text_table(results: Results) -> str:
    """Plain-text table in percent: one row a benchmark, then the macro average and its 95% interval.

    Args:
        results: One to three results of the same benchmarks and k.

    Returns:
        Lines of at most :data:`TABLE_WIDTH` characters (three results), with notes on truncated and failed samples and
        on gradings that ran out of time below.

    Raises:
        ValueError: If there are no results, or if their benchmarks or k differ.
    """
    tables = _as_json(results)
    k, names = _shared_shape(tables)
    width = 2 * _CELL + 2
    header = " " * _NAME_WIDTH + "".join(_shorten(label, width - 2).rjust(width) for label in tables)
    units = _row("benchmark", [f"Mean@{k}", f"Pass@{k}"] * len(tables))
    rule = "-" * len(units)
    lines = [header.rstrip(), units, rule]
    lines += [_row(_shorten(name, _NAME_WIDTH), _set_cells(tables, name)) for name in names]
    lines += [rule, _row("macro average", _average_cells(tables)), _row("  95% interval", _interval_cells(tables))]
    return "\n".join(lines + _notes(tables))


def markdown_table(results: Results) -> str:
    """The same table as Markdown, the interval of the average in the cell.

    Args:
        results: Results of the same benchmarks and k.

    Raises:
        ValueError: If there are no results, or if their benchmarks or k differ.
    """
    tables = _as_json(results)
    k, names = _shared_shape(tables)
    heads = [f"{_escape(label)} {metric}@{k}" for label in tables for metric in ("Mean", "Pass")]
    lines = [f"| benchmark | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    lines += [f"| {_escape(name)} | {' | '.join(_set_cells(tables, name))} |" for name in names]
    averages = [
        f"**{value}** [{interval}]"
        for value, interval in zip(_average_cells(tables), _interval_cells(tables), strict=True)
    ]
    lines.append(f"| macro average [95% interval] | {' | '.join(averages)} |")
    notes = _notes(tables)
    return "\n".join(lines + ([""] + [f"{note}  " for note in notes] if notes else []))


def _as_json(results: Results) -> dict[str, Mapping[str, Any]]:
    if not results:
        raise ValueError("expected at least one result to tabulate, got none")
    return {
        label: result.to_json() if isinstance(result, EvaluationResult) else result for label, result in results.items()
    }


def _shared_shape(tables: Mapping[str, Mapping[str, Any]]) -> tuple[int, list[str]]:
    """The k and the benchmark names that all results share."""
    first_label, first = next(iter(tables.items()))
    k, names = first["average"]["k"], list(first["benchmarks"])
    for label, table in tables.items():
        if table["average"]["k"] != k:
            raise ValueError(
                f"{first_label} has k = {k} and {label} has k = {table['average']['k']}; evaluate both with one k"
            )
        if set(table["benchmarks"]) != set(names):
            raise ValueError(
                f"{first_label} has benchmarks {sorted(names)} and {label} has {sorted(table['benchmarks'])}, so "
                "their averages cannot be compared; evaluate both on the same benchmarks"
            )
    return k, names


def _set_cells(tables: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    return [f"{100 * table['benchmarks'][name][metric]:.1f}" for table in tables.values() for metric in _METRICS]


def _average_cells(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"{100 * table['average'][metric]:.1f}" for table in tables.values() for metric in _METRICS]


def _interval_cells(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        "-".join(f"{100 * end:.1f}" for end in table["average"]["ci95"][metric])
        for table in tables.values()
        for metric in _METRICS
    ]


def _notes(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    notes = []
    for label, table in tables.items():
        sets = table["benchmarks"].values()
        samples = sum(each["num_problems"] * each["num_samples"] for each in sets)
        truncated = sum(each["truncated"] * each["num_problems"] * each["num_samples"] for each in sets)
        timeouts = sum(each["timeouts"] for each in sets)
        note = f"{_shorten(label, 20)}: {samples} samples, {100 * truncated / samples:.1f}% cut by the length cap"
        unparsed = sum(each.get("unparsed", 0) for each in sets)
        note += f", {unparsed} without a readable answer" if unparsed else ""
        note += f", {timeouts} gradings ran out of time (counted as wrong)" if timeouts else ""
        notes.append(note)
        if table.get("tokens_per_s"):
            notes.append(f"{_shorten(label, 20)}: {table['tokens_per_s']:.0f} completion tokens/s")
        for name, each in table["benchmarks"].items():
            notes += [
                f"{_shorten(label, 20)}: {name} {other.replace('_', ' ')}: "
                f"{100 * figures['mean_at_k']:.1f} / {100 * figures['pass_at_k']:.1f}"
                for other, figures in each.items()
                if isinstance(figures, Mapping) and "mean_at_k" in figures and other != "ci95"
            ]
        failed = sum(each.get("failed", 0) for each in sets)
        if failed:
            notes.append(f"{_shorten(label, 20)}: {failed} samples ended in NaN (counted as wrong); check the weights")
    return notes


def _row(name: str, cells: list[str]) -> str:
    pairs = [f"{cells[i].rjust(_CELL + 1)}{cells[i + 1].rjust(_CELL + 1)}" for i in range(0, len(cells), 2)]
    return name.ljust(_NAME_WIDTH) + "".join(pairs)


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
