"""Names on the command line into benchmarks: the lab's, the shipped ones, and those of users."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from saki import lab
from saki.config.parsing import UsageError, read_yaml
from saki.evaluation import BENCHMARKS, PAPER_BENCHMARKS, BenchmarkSpec
from saki.types.exact import did_you_mean, unknown_option
from saki.types.imports import import_named

LAB, PAPER = "lab", "paper"

_KEYS = [field.name for field in dataclasses.fields(BenchmarkSpec) if field.name != "grade"]


def benchmark_choices(names: str) -> list[str | BenchmarkSpec]:
    """What ``--benchmarks`` asks for.

    Args:
        names: Names separated by commas: ``lab`` or ``paper`` for all seven of either, a lab set, a shipped
            benchmark, a YAML file of entries, or ``module:NAME``.

    Returns:
        In the order asked for: the name of a lab set, or a spec.

    Raises:
        UsageError: If a name is unknown, or a file or module holds no benchmark.
    """
    found: list[str | BenchmarkSpec] = []
    for name in filter(None, (word.strip() for word in names.split(","))):
        if name == LAB:
            found.extend(lab.TEST_SETS)
        elif name == PAPER:
            found.extend(PAPER_BENCHMARKS)
        elif name in lab.TEST_SETS:
            found.append(name)
        elif name in BENCHMARKS:
            found.append(BENCHMARKS[name])
        elif name.endswith((".yaml", ".yml")):
            found.extend(_from_file(Path(name)))
        elif ":" in name:
            found.append(import_named(name, BenchmarkSpec, "benchmark", "saki.evaluation.BenchmarkSpec", UsageError))
        else:
            known = (LAB, PAPER, *BENCHMARKS, *lab.TEST_SETS)
            hint = did_you_mean(name, known, f"choose among {', '.join(known)}, a YAML file, or module:NAME")
            raise UsageError(f"unknown benchmark {name!r}; {hint}")
    if not found:
        raise UsageError("benchmarks is empty; name at least one, such as lab or math500")
    return found


def _from_file(path: Path) -> list[BenchmarkSpec]:
    """Entries of a YAML file: one mapping with a ``name``, or names with a mapping each."""
    values = read_yaml(path)
    entries = [values] if "name" in values else [{"name": key, **_mapping(path, key, values[key])} for key in values]
    return [_spec(entry, path) for entry in entries]


def _mapping(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{key} in {path} must hold the fields of a benchmark, such as hub_id or path, got {value!r}")
    return value


def _spec(entry: dict[str, Any], path: Path) -> BenchmarkSpec:
    for key in entry:
        if key not in _KEYS:
            raise UsageError(unknown_option(str(key), _KEYS, str(path)))
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else (value,) if key.endswith(("_fields", "_names")) else value
        for key, value in entry.items()
    }
    if values.get("path"):
        values["path"] = str(path.parent / values["path"])  # beside the file that names it
    return BenchmarkSpec(**values)
