"""The folder of an evaluation: what fixes its samples, what it graded, and what a later command reads there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from saki.cli.console import fresh_folder, holdings
from saki.config import UsageError
from saki.config.benchmarks import benchmark_records, recorded_specs
from saki.config.parsing import read_yaml
from saki.evaluation import BenchmarkSpec
from saki.files import write_text

INPUTS = "inputs.json"
"""What fixes every sample of an evaluation; a run that continues another must have the same."""

SAMPLES, RESULT = "samples", "evaluation.json"
RECORDS = "benchmarks.yaml"
"""Where the benchmarks come from, so that their graders are found from any folder."""

_LATER = frozenset({"stop_token_ids", "prompts"})
"""Inputs that notes of earlier versions lack; where one is missing it is not compared."""

_WORDS = {
    "benchmarks": "other problems",
    "checksum": "other weights",
    "prompts": "other prompts (has the tokenizer or its chat template changed, or does it write the date?)",
}
"""Inputs whose values, digests, tell a reader nothing."""


def evaluation_folder(out: str) -> Path:
    """A folder to fill: an empty one, or one that an evaluation began to fill.

    Raises:
        ValueError: If it holds something else, or cannot be made or written.
    """
    folder = Path(out)
    return folder if INPUTS in holdings(folder) else fresh_folder(out, "saki eval")


def claim(folder: Path, inputs: dict[str, Any]) -> None:
    """Note what fixes the samples. An earlier note without any samples binds nobody.

    Args:
        folder: From :func:`evaluation_folder`.
        inputs: JSON values, the settings that a user can name before the digests.

    Raises:
        UsageError: If there are samples of other inputs, or if the earlier note cannot be read.
    """
    path = folder / INPUTS
    if path.is_file() and any((folder / SAMPLES).rglob("*.parquet")):
        before = _read_json(path, "give another --out, or remove the folder to evaluate anew")
        for key, value in inputs.items():
            if before.get(key) != value and not (key in _LATER and key not in before):
                what = f"of {_WORDS[key]}" if key in _WORDS else f"with {key} {before.get(key)}, this one has {value}"
                raise UsageError(
                    f"{folder} holds an evaluation {what}; give another --out, or the same options to go on"
                )
    write_text(path, json.dumps(inputs, indent=2))


def finished_evaluation(folder: Path) -> tuple[str, list[str]]:
    """Label of the model and names of the benchmarks of a finished evaluation.

    Raises:
        UsageError: If there is none, or if its figures cannot be read.
    """
    path = folder / RESULT
    if not path.is_file():
        raise UsageError(
            f"{folder} holds no finished evaluation (no {RESULT}); give the --out folder of saki eval, and run "
            "that command again if it was killed"
        )
    remedy = "give the command of that evaluation again, which writes it anew from the samples"
    values = _read_json(path, remedy)
    for label, result in values.items():
        if isinstance(result, dict) and isinstance(result.get("benchmarks"), dict) and result["benchmarks"]:
            return label, list(result["benchmarks"])
    raise UsageError(f"{path} holds no figures of benchmarks; {remedy}")


def write_records(folder: Path, records: dict[str, Any]) -> None:
    """Keep where the benchmarks come from; see :func:`saki.config.benchmarks.benchmark_records`."""
    write_text(folder / RECORDS, yaml.safe_dump(records, sort_keys=False, allow_unicode=True))


def read_records(folder: Path) -> tuple[dict[str, Any], dict[str, BenchmarkSpec]]:
    """What :func:`write_records` kept, and the specs behind it by name.

    Folders of older versions have the names of ``--benchmarks`` alone, in which files are relative to the folder that
    the evaluation was started in.

    Raises:
        UsageError: If nothing of it can be read.
    """
    path = folder / RECORDS
    if path.is_file():
        records = read_yaml(path)
    else:
        path = folder / "config.resolved.yaml"
        records = benchmark_records(str(read_yaml(path).get("benchmarks", "")))
    return records, recorded_specs(records, path)


def read_inputs(folder: Path) -> dict[str, Any]:
    """What fixed the samples of a finished evaluation.

    Raises:
        UsageError: If the note cannot be read.
    """
    return _read_json(folder / INPUTS, "evaluate again")


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is damaged ({error}); {remedy}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds a {type(values).__name__}, expected an object; {remedy}")
    return values
