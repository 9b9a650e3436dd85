"""Rows of a benchmark, from a local file or from the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ENDINGS = (".parquet", ".jsonl", ".json")


class BenchmarkDataError(ValueError):
    """A benchmark's data are missing, cannot be read, or are not what they should be."""


def find_file(folder: Path, name: str, file_names: tuple[str, ...]) -> Path:
    """The file of a benchmark in a folder.

    Args:
        folder: The folder.
        name: Name of the benchmark.
        file_names: Further names, without ending, in whatever case.

    Raises:
        BenchmarkDataError: If there is no such file, or more than one.
    """
    if not folder.is_dir():
        raise BenchmarkDataError(f"there is no folder {folder}; data_dir is a folder of parquet or JSON-lines files")
    stems = {stem.lower() for stem in (name, *file_names)}
    files = sorted(path for path in folder.iterdir() if path.suffix in ENDINGS)
    found = [path for path in files if path.stem.lower() in stems]
    if len(found) > 1:
        raise BenchmarkDataError(f"{folder} has {found[0].name} and {found[1].name} for {name}; keep one of the two")
    if not found:
        there = ", ".join(path.name for path in files) or "no such files"
        raise BenchmarkDataError(
            f"{folder} has no file for {name}; expected {name} as {', '.join(ENDINGS)}, and it holds {there}"
        )
    return found[0]


def file_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a parquet file, or of a file with one JSON object a line.

    Args:
        path: The file.

    Raises:
        BenchmarkDataError: If it is not there or cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            return [dict(row) for row in pq.read_table(path).to_pylist()]
        text = path.read_text(encoding="utf-8")
        rows = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(x) for x in text.split("\n") if x.strip()]
        )
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = str(error).split("\n")[0]
        other = f", and {path.suffix} is neither" if path.suffix not in ENDINGS else ""
        raise BenchmarkDataError(
            f"cannot read {path} ({reason}); expected a parquet file, or one JSON object a line{other}"
        ) from error
    if not all(isinstance(row, dict) for row in rows):
        raise BenchmarkDataError(f"{path} holds something besides JSON objects; expected one object a line")
    return list(rows)


def hub_rows(hub_id: str, split: str, revision: str | None) -> list[dict[str, Any]]:
    """Rows of a data set on the hub.

    Args:
        hub_id: Its name there.
        split: Split of it.
        revision: Commit; None for the newest.

    Raises:
        BenchmarkDataError: If it cannot be loaded.
    """
    import datasets
    from datasets.exceptions import DatasetGenerationError

    try:
        dataset = datasets.load_dataset(hub_id, split=split, revision=revision)
    except (OSError, ValueError, RuntimeError, DatasetGenerationError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise BenchmarkDataError(
            f"cannot load {hub_id}, split {split}, revision {revision or 'main'} ({reason}); check the connection, "
            "or give a folder of files with --data_dir"
        ) from error
    return [dict(row) for row in dataset]
