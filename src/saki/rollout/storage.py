"""Rollouts on disk: parquet, one row a completion, with a schema version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from saki.files import whole_file
from saki.rollout.recorder import METADATA
from saki.types import RolloutBatch, fill_value

SCHEMA_VERSION = 2
"""Written into the file's metadata; readers refuse other versions."""

SAME_AS_COMMITTED = {
    "proposal_logprobs": ("proposal_ids", "student_logprobs"),
    "proposal_teacher_logprobs": ("proposal_ids", "teacher_logprobs"),
    "mode_student_logprobs": ("teacher_mode_ids", "student_logprobs"),
    "mode_teacher_logprobs": ("teacher_mode_ids", "teacher_logprobs"),
}
"""Columns of another token's log-probs: its ids, and the column of y that says the same where that token is y."""

_KEY = b"saki"


class RolloutFileError(ValueError):
    """A rollout file is missing, damaged or of another version."""


def rollout_schema(float_dtype: torch.dtype = torch.float32) -> pa.Schema:
    """Columns of a rollout file. List columns hold one value per valid response token.

    The last four would repeat ``student_logprobs`` and ``teacher_logprobs`` wherever z or v* is y, which is nearly
    everywhere. A value is null there: it is that of the committed token. :func:`read_rollouts` puts it in.

    Args:
        float_dtype: float32, or float64 (list<double>) for rollouts of float64 models.

    =========================  =================  ==========================================================
    column                     type               meaning
    =========================  =================  ==========================================================
    prompt_key                 int64              row of the prompt in the data set before filtering
    sample_index               int64              which sample of the prompt
    finish_reason              string             stop, length or nan
    student_version            int64              weight version that drafted
    trust_region_radius        double             nats
    seed                       uint64             request seed
    prompt_ids                 list<int32>        prompt tokens
    completion_ids             list<int32>        committed tokens y, the end token included
    proposal_ids               list<int32>        proposals z
    correction_mask            list<bool>         true where z was rejected
    student_logprobs           list<float>        log p(y), nats
    behavior_logprobs          list<float>        log q(y), nats
    teacher_logprobs           list<float>        log T(y), nats; null where the rollout was not scored
    teacher_mode_ids           list<int32>        argmax of T; null where not scored
    beta                       list<float>        bridge coefficient
    kl                         list<float>        KL(q||p), nats
    tv                         list<float>        TV(p, q)
    acceptance_probability     list<float>        min(1, q(z)/p(z))
    proposal_logprobs          list<float>        log p(z), nats; a value is null where z = y
    proposal_teacher_logprobs  list<float>        log T(z), nats; null where not scored, a value where z = y
    mode_student_logprobs      list<float>        log p(v*) of the teacher's mode v*, nats; null where the student
                                                  rolled out alone, a value where v* = y
    mode_teacher_logprobs      list<float>        log T(v*), nats; null where not scored, a value where v* = y
    =========================  =================  ==========================================================
    """
    real = pa.float64() if float_dtype == torch.float64 else pa.float32()
    types = {torch.long: pa.list_(pa.int32()), torch.bool: pa.list_(pa.bool_()), None: pa.list_(real)}
    columns = [
        ("prompt_key", pa.int64()),
        ("sample_index", pa.int64()),
        ("finish_reason", pa.string()),
        ("student_version", pa.int64()),
        ("trust_region_radius", pa.float64()),
        ("seed", pa.uint64()),
        ("prompt_ids", pa.list_(pa.int32())),
    ]
    return pa.schema(columns + [(name, types[dtype]) for name, dtype in METADATA.items()])


def write_rollouts(path: Path, batch: RolloutBatch, facts: dict[str, str] | None = None) -> None:
    """Write a batch to one parquet file, whole or not at all.

    Args:
        path: The file.
        batch: What to write. Values that the rollout does not have become nulls.
        facts: Strings to keep in the file's metadata, for example the method.

    Raises:
        DiskFullError: If there is no room.
    """
    schema = rollout_schema(batch.student_logprobs.dtype)
    columns: dict[str, object] = {
        "prompt_key": batch.prompt_keys.tolist(),
        "sample_index": batch.sample_indices.tolist(),
        "finish_reason": list(batch.finish_reasons),
        "student_version": [batch.student_version] * len(batch),
        "trust_region_radius": [batch.trust_region_radius] * len(batch),
        "seed": [batch.seed] * len(batch),
        "prompt_ids": [batch.prompt_token_ids(row) for row in range(len(batch))],
    }
    columns |= {name: _listed(batch, name, schema.field(name).type) for name in METADATA}
    meta = json.dumps({"schema_version": SCHEMA_VERSION, "facts": facts or {}})
    table = pa.Table.from_pydict(columns, schema=schema.with_metadata({_KEY: meta.encode()}))
    with whole_file(path) as unfinished:
        pq.write_table(table, unfinished)


def _listed(batch: RolloutBatch, name: str, kind: pa.ListType) -> pa.Array:
    """One column of lists, made of flat values: a list a number would take seconds for a large step."""
    mask, values = batch.response_mask, getattr(batch, name)
    missing = torch.isnan(values) if values.is_floating_point() else values == -1
    lengths = mask.sum(dim=1)
    unknown = (lengths > 0) & (missing | ~mask).all(dim=1) & (values.dtype != torch.bool)
    repeated = _repeated(batch, name)[mask].numpy() if name in SAME_AS_COMMITTED else None
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int()
    return pa.ListArray.from_arrays(
        pa.array(offsets.numpy()),
        pa.array(values[mask].numpy(), type=kind.value_type, mask=repeated),
        type=kind,
        mask=pa.array(unknown.numpy()),
    )


@dataclass(frozen=True)
class RolloutFacts:
    """What the footer of a rollout file says.

    Attributes:
        facts: Strings that its writer kept there, for example the method.
        num_rows: Completions.
        num_tokens: Response tokens.
    """

    facts: dict[str, str]
    num_rows: int
    num_tokens: int


def read_rollout_facts(path: Path) -> RolloutFacts:
    """Read the footer of a rollout file, without its columns.

    Raises:
        RolloutFileError: If the file is missing, damaged or of another schema version.
    """
    with _opened(path) as file:
        facts, meta = _check_schema(path, file.schema_arrow), file.metadata
        groups = [meta.row_group(index) for index in range(meta.num_row_groups)]
        columns = [group.column(index) for group in groups for index in range(group.num_columns)]
        tokens = sum(column.num_values for column in columns if column.path_in_schema.startswith("completion_ids."))
    return RolloutFacts(facts, meta.num_rows, tokens)


def read_rollout_table(path: Path) -> tuple[pa.Table, dict[str, str]]:
    """Read a rollout file as it stands, columns as of :func:`rollout_schema`.

    Returns:
        The table, of at least one row, and the facts of its metadata.

    Raises:
        RolloutFileError: If the file is missing, damaged, empty or of another schema version.
    """
    with _opened(path) as file:
        facts = _check_schema(path, file.schema_arrow)
        table = file.read()
    if table.num_rows == 0:
        raise RolloutFileError(f"{path} holds no rollout; expected at least one row")
    return table, facts


def read_rollouts(path: Path) -> tuple[RolloutBatch, dict[str, str]]:
    """Read a rollout file back.

    Returns:
        The batch, in the dtype it was written in, and the facts of its metadata.

    Raises:
        RolloutFileError: If the file is missing, damaged, empty or of another schema version.
    """
    table, facts = read_rollout_table(path)
    columns = table.to_pydict()
    lengths = torch.tensor([len(ids) for ids in columns["completion_ids"]])
    width = max(int(lengths.max()), 1)
    prompt_lengths = torch.tensor([len(ids) for ids in columns["prompt_ids"]])
    prompt_width = int(prompt_lengths.max())
    is_double = table.schema.field("student_logprobs").type.value_type == pa.float64()
    float_dtype = torch.float64 if is_double else torch.float32
    tensors = {}
    for name, dtype in METADATA.items():
        actual = dtype or float_dtype
        tensors[name] = torch.full((table.num_rows, width), fill_value(actual), dtype=actual)
        for row, values in enumerate(columns[name]):
            if values and name in SAME_AS_COMMITTED:
                own = columns[SAME_AS_COMMITTED[name][1]][row] or [torch.nan] * len(values)
                values = [same if value is None else value for value, same in zip(values, own, strict=True)]
            if values:
                tensors[name][row, : len(values)] = torch.tensor(values, dtype=actual)
    prompt_ids = torch.full((table.num_rows, prompt_width), -1, dtype=torch.long)
    for row, ids in enumerate(columns["prompt_ids"]):
        prompt_ids[row, prompt_width - len(ids) :] = torch.tensor(ids, dtype=torch.long)
    batch = RolloutBatch(
        prompt_ids=prompt_ids,
        prompt_mask=torch.arange(prompt_width) >= prompt_width - prompt_lengths.unsqueeze(1),
        response_mask=torch.arange(width) < lengths.unsqueeze(1),
        prompt_keys=torch.tensor(columns["prompt_key"], dtype=torch.long),
        sample_indices=torch.tensor(columns["sample_index"], dtype=torch.long),
        finish_reasons=tuple(columns["finish_reason"]),
        student_version=columns["student_version"][0],
        trust_region_radius=columns["trust_region_radius"][0],
        seed=columns["seed"][0],
        **tensors,
    )
    return batch, facts


def _repeated(batch: RolloutBatch, name: str) -> Tensor:
    """[B, T] bool: where a column of :data:`SAME_AS_COMMITTED` says again what y's column says."""
    ids, own = (getattr(batch, other) for other in SAME_AS_COMMITTED[name])
    value = getattr(batch, name)
    same: Tensor = (ids == batch.completion_ids) & ((value == own) | (torch.isnan(value) & torch.isnan(own)))
    return same


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """A parquet file; whatever is wrong with its bytes is one sentence."""
    if not path.is_file():
        raise RolloutFileError(f"there is no rollout file {path}; give a parquet file that a rollout wrote")
    if path.stat().st_size == 0:
        raise RolloutFileError(f"{path} is not a readable parquet file (it is empty); write it again")
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise RolloutFileError(
            f"{path} is not a readable parquet file ({reason}); it is cut off or no parquet, so write it again"
        ) from error


def _check_schema(path: Path, schema: pa.Schema) -> dict[str, str]:
    """The facts in a schema's metadata, if it is that of a rollout file."""
    raw = (schema.metadata or {}).get(_KEY)
    if raw is None:
        raise RolloutFileError(
            f"{path} is parquet, but not a rollout file of saki; give one that saki train or saki rollout wrote"
        )
    try:
        meta = json.loads(raw)
        version, facts = meta["schema_version"], dict(meta["facts"])
    except (ValueError, KeyError, TypeError) as error:
        raise RolloutFileError(f"{path} has damaged metadata ({error!r}); write it again") from error
    if version != SCHEMA_VERSION:
        remedy = "use the saki that wrote it"
        if version == 1:
            remedy = "it lacks log-probs of proposals and modes, so roll out again or use the saki that wrote it"
        raise RolloutFileError(f"{path} has schema version {version}, this saki reads {SCHEMA_VERSION}; {remedy}")
    absent = [name for name in rollout_schema().names if name not in schema.names]
    if absent:
        raise RolloutFileError(f"{path} lacks the columns {', '.join(absent)}; write it again")
    return facts
