"""Names on the command line into benchmarks: the lab's, the shipped ones, and those of users."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saki import lab
from saki.config.parsing import UsageError, read_yaml
from saki.evaluation import BENCHMARKS, PAPER_BENCHMARKS, BenchmarkSpec
from saki.types.exact import did_you_mean, unknown_option
from saki.types.imports import import_named

LAB, PAPER = "lab", "paper"

Choice = str | BenchmarkSpec
"""The name of a lab set, or a spec."""

_KEYS = [field.name for field in dataclasses.fields(BenchmarkSpec) if field.name != "grade"]


def benchmark_choices(names: str) -> list[Choice]:
    """What ``--benchmarks`` asks for.

    Args:
        names: Names separated by commas: ``lab`` or ``paper`` for all seven of either, a lab set, a shipped
            benchmark, a YAML file of entries, or ``module:NAME``.

    Returns:
        In the order asked for: the name of a lab set, or a spec.

    Raises:
        UsageError: If a name is unknown or a benchmark named twice, or if a file or module holds no benchmark.
    """
    owners: dict[str, str] = {}
    found: list[Choice] = []
    for word in _words(names):
        for choice in _named(word):
            name = benchmark_name(choice)
            if name in owners:
                both = f"by {owners[name]} and by {word}" if owners[name] != word else f"by {word}"
                raise UsageError(f"benchmark {name} is named twice in benchmarks, {both}; name it once")
            owners[name] = word
            found.append(choice)
    if not found:
        raise UsageError("benchmarks is empty; name at least one, such as lab or math500")
    return found


def benchmark_name(choice: Choice) -> str:
    """The name of a choice."""
    return choice if isinstance(choice, str) else choice.name


def benchmark_records(names: str) -> dict[str, Any]:
    """What ``--benchmarks`` asks for as YAML values, from which :func:`recorded_specs` finds the graders anywhere.

    Args:
        names: As for :func:`benchmark_choices`.

    Returns:
        By name: a word for ``--benchmarks``, or the fields of an entry of a YAML file, its path absolute.
    """
    records: dict[str, Any] = {}
    for word in _words(names):
        for choice in _named(word):
            if isinstance(choice, str) or choice is BENCHMARKS.get(choice.name):
                records[benchmark_name(choice)] = benchmark_name(choice)
            elif _is_file(word):
                records[choice.name] = _entry(choice)
            else:
                records[choice.name] = word
    return records


def recorded_specs(records: Mapping[str, Any], path: Path) -> dict[str, BenchmarkSpec]:
    """The specs behind :func:`benchmark_records`, by name; sets of the lab have none.

    Args:
        records: The records.
        path: Their file, for messages.

    Raises:
        UsageError: If a record is neither a word nor the fields of a benchmark, or names what is not there any more.
    """
    specs: dict[str, BenchmarkSpec] = {}
    for name, record in records.items():
        choices = (
            _named(record) if isinstance(record, str) else [_spec({"name": name, **_mapping(path, name, record)}, path)]
        )
        specs.update({choice.name: choice for choice in choices if isinstance(choice, BenchmarkSpec)})
    return specs


def _words(names: str) -> list[str]:
    return [word for word in (word.strip() for word in names.split(",")) if word]


def _named(name: str) -> list[Choice]:
    """What one word of ``--benchmarks`` asks for."""
    if name == LAB:
        return list(lab.TEST_SETS)
    if name == PAPER:
        return list(PAPER_BENCHMARKS)
    if name in lab.TEST_SETS:
        return [name]
    if name in BENCHMARKS:
        return [BENCHMARKS[name]]
    if _is_file(name):
        return list(_from_file(Path(name)))
    if ":" in name:
        return [import_named(name, BenchmarkSpec, "benchmark", "saki.evaluation.BenchmarkSpec", UsageError)]
    known = (LAB, PAPER, *BENCHMARKS, *lab.TEST_SETS)
    hint = did_you_mean(name, known, f"choose among {', '.join(known)}, a YAML file, or module:NAME")
    raise UsageError(f"unknown benchmark {name!r}; {hint}")


def _is_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


def _entry(spec: BenchmarkSpec) -> dict[str, Any]:
    """The fields of a spec that differ from their defaults, as YAML takes them."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.name in _KEYS and field.name != "name" and value != field.default:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    if spec.path:
        values["path"] = str(Path(spec.path).absolute())
    return values


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
    if isinstance(values.get("path"), str) and values["path"]:
        values["path"] = str(path.parent / values["path"])  # beside the file that names it
    try:
        return BenchmarkSpec(**values)
    except ValueError as error:
        raise UsageError(f"{error} (in {path})") from error
