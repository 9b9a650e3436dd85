"""Measurements of a probe on disk: one parquet file a checkpoint, a row a position."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from saki.files import whole_file
from saki.probe.records import MEASURES, Measures
from saki.probe.storage import ProbeFileError

SCHEMA_VERSION = 1
"""Written into the file's metadata; readers refuse other versions."""

_KEY = b"saki_probe"


@dataclass(frozen=True)
class Measurement:
    """What a model showed at the positions of a probe.

    Attributes:
        measures: Its figures.
        probe: Digest of the probe.
        label: What was measured: a method, or a model's name.
        step: Optimizer steps it has seen, or None where that is not known.
        top_k: Size of the teacher's top set in ``c_top``.
        model_checksum: Checksum of its tensors.
    """

    measures: Measures
    probe: str
    label: str
    step: int | None
    top_k: int
    model_checksum: str

    def means(self) -> dict[str, float]:
        """Plain means over positions, by name of the figure."""
        return {name: float(getattr(self.measures, name).mean()) for name in MEASURES}


def write_measurement(path: Path, measurement: Measurement) -> None:
    """Write a measurement, whole or not at all: columns as the fields of :class:`Measures`, float64.

    Raises:
        DiskFullError: If there is no room.
    """
    columns = {name: getattr(measurement.measures, name).numpy() for name in MEASURES}
    meta = {name: getattr(measurement, name) for name in ("probe", "label", "step", "top_k", "model_checksum")}
    meta["schema_version"] = SCHEMA_VERSION
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(meta).encode()})
    with whole_file(path) as unfinished:
        pq.write_table(table, unfinished, write_page_checksum=True)


def read_measurement(path: Path) -> Measurement:
    """Read a measurement back.

    Raises:
        ProbeFileError: If the file is missing, damaged, empty, something else or of another version.
    """
    if not path.is_file():
        raise ProbeFileError(f"there is no measurement {path}; write one with saki probe measure")
    if path.stat().st_size == 0:
        raise ProbeFileError(f"{path} is empty; measure the checkpoint again")
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ProbeFileError(f"{path} is damaged or cut short ({reason}); measure the checkpoint again") from error
    raw = (table.schema.metadata or {}).get(_KEY)
    if raw is None:
        raise ProbeFileError(f"{path} is parquet, but not a measurement of a probe; give files of saki probe measure")
    meta: dict[str, Any] = json.loads(raw)
    if meta.pop("schema_version") != SCHEMA_VERSION:
        version = json.loads(raw)["schema_version"]
        raise ProbeFileError(
            f"{path} has schema version {version}, this saki reads {SCHEMA_VERSION}; measure the checkpoint again"
        )
    if table.num_rows == 0:
        raise ProbeFileError(f"{path} holds no position; measure the checkpoint again")
    return Measurement(Measures(**{name: torch.tensor(table[name].to_numpy()) for name in MEASURES}), **meta)
