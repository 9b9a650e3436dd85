"""Names on the command line into benchmarks: the lab's, the shipped ones, and those of users."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

from saki import lab
from saki.config.parsing import UsageError, read_yaml
from saki.evaluation import BENCHMARKS, PAPER_BENCHMARKS, BenchmarkSpec
from saki.types.exact import did_you_mean, unknown_option

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
            found.append(_imported(name))
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


def _imported(name: str) -> BenchmarkSpec:
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or not attribute.isidentifier():
        raise UsageError(f"{name!r} names no benchmark; write it as package.module:ATTRIBUTE")
    try:
        spec = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the user's module is run here, and may fail in any way
        raise UsageError(
            f"cannot import benchmark {name!r} ({type(error).__name__}: {error}); check the module and the Python path"
        ) from error
    if not isinstance(spec, BenchmarkSpec):
        raise UsageError(f"{name!r} is a {type(spec).__name__}, expected a saki.evaluation.BenchmarkSpec")
    return spec
