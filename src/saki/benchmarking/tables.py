"""Results on screen, in the form of the paper's Tables 3, 9 and 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saki.rollout.external_stats import HONEST_RATIO


def rollout_table(result: Mapping[str, Any]) -> str:
    """Implementation, K, tokens per second with spread, and how it runs (Table 9); below it the split (Table 10)."""
    head = ["implementation", "K", "tok/s", "min-max", "relative", "tok/cpu s", "tok/wave", "corr.", "peak MiB", "law"]
    rows, splits = [], []
    for name, arm in result["arms"].items():
        spread = arm["spread"]["tokens_per_s"]
        rows.append(
            [
                name,
                _or_dash(arm["block_size"], "{:d}"),
                _speed(arm["tokens_per_s"]),
                f"{_speed(spread['min'])}-{_speed(spread['max'])}",
                _or_dash(arm["ratio_to_student_only"], "{:.2f}"),
                _speed(arm["tokens_per_cpu_s"]),
                _or_dash(arm["tokens_per_wave"], "{:.2f}"),
                _or_dash(arm["correction_rate"], "{:.4f}"),
                "-" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 2**20:.0f}",
                arm["law"],
            ]
        )
        splits.append((name, arm["split"]))
    notes = [f"{name}: {arm['execution']}" + _differs(arm["differs"]) for name, arm in result["arms"].items()]
    notes += [_external_note(name, arm) for name, arm in result["arms"].items() if arm.get("overhead_ratio")]
    notes += [f"{name}: {reason}" for name, reason in result.get("skipped", {}).items()]
    if prefill := result.get("prefill"):
        notes.append(
            f"prefill for {prefill['samples_per_prompt']} samples of each prompt / for one: {prefill['ratio']:.3f}"
        )
    phases = list(dict.fromkeys(phase for _, split in splits for phase in split))
    split_rows = [
        [name, *(f"{split[phase]:.3f}" if phase in split else "-" for phase in phases)]
        for name, split in splits
        if any(seconds for phase, seconds in split.items() if phase != "rest")
    ]
    parts = [_columns([head, *rows])]
    if split_rows:
        parts.append(_columns([["seconds", *phases], *split_rows]))
    return "\n\n".join([*parts, "\n".join(notes)])


def _external_note(name: str, arm: Mapping[str, Any]) -> str:
    """What an external loop moved, and whether it counts."""
    ratio = arm["overhead_ratio"]
    verdict = "a baseline" if ratio <= HONEST_RATIO else "no baseline: slower than its parts explain"
    return (
        f"{name}: {arm['bytes_moved'] / 2**20:,.1f} MiB moved; a wave takes {ratio:.2f} times its forward, serialise, "
        f"transfer and bridge time (at most {HONEST_RATIO:g}): {verdict}"
    )


def bridge_table(result: Mapping[str, Any]) -> str:
    """Milliseconds a row of each solver, by vocabulary."""
    rows = [["vocabulary", "solver", "ms/row", "16 full-tensor waves / it", "max |d beta|", "max KL - radius"]]
    for vocab, entry in result["vocab"].items():
        for name, solver in entry["solvers"].items():
            rows.append(
                [
                    vocab,
                    name,
                    f"{solver['ms_per_row']:.4f}",
                    f"{entry['speedups'][name]:.1f}",
                    f"{solver['max_abs_dbeta']:.1e}",
                    f"{solver['max_kl_excess']:+.1e}",
                ]
            )
    return _columns(rows)


def train_table(result: Mapping[str, Any]) -> str:
    """Seconds of a step by component (Table 10), an arm a row."""
    rows = [["trainer", "step s", "min-max", "generation", "scoring", "update", "sync", "step / TRL's"]]
    for name, arm in result["arms"].items():
        spread = arm["spread_step_s"]
        parts = [f"{arm[f'{phase}_s']:.3f}" for phase in ("generation", "scoring", "update", "sync")]
        rows.append(
            [
                name,
                f"{arm['step_s']:.3f}",
                f"{spread['min']:.3f}-{spread['max']:.3f}",
                *parts,
                f"{arm['ratio_to_trl']:.2f}",
            ]
        )
    return "\n\n".join(
        [_columns(rows), "\n".join(f"{name}: loss {arm['loss']}" for name, arm in result["arms"].items())]
    )


def _differs(text: str) -> str:
    return f" (differs: {text})" if text else ""


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _or_dash(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
