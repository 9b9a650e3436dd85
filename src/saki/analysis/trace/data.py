"""Rollout files into the data of a trace page: columns of numbers and one small table of facts."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from saki.analysis.trace.vocabulary import TokenTexts
from saki.methods import get_method, method_names
from saki.rollout import RolloutFileError, read_rollout_table


@dataclass(frozen=True)
class Drawn:
    """What a judge sees of a rollout file; one entry a completion.

    Attributes:
        step: Optimizer step, or None where not recorded.
        prompt_keys: Rows of the prompts in their data set.
        sample_indices: Which sample of the prompt.
        prompt_ids: Prompt tokens.
        completion_ids: Committed tokens, the end token included.
    """

    step: int | None
    prompt_keys: list[int]
    sample_indices: list[int]
    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]


Judge = Callable[[Drawn], Sequence[bool | None]]
"""Says of each completion whether it is right; None where that is not known."""

FLOATS = (
    "student_logprobs",
    "behavior_logprobs",
    "teacher_logprobs",
    "beta",
    "kl",
    "tv",
    "acceptance_probability",
    "proposal_logprobs",
    "proposal_teacher_logprobs",
    "mode_student_logprobs",
    "mode_teacher_logprobs",
)
"""Numbers of a token that the page holds, as float32; NaN where unknown, or where the file says it of the committed
token already (``saki.rollout.storage.SAME_AS_COMMITTED``)."""

SAME, UNKNOWN = 0, -1
"""Stand for the committed token and for none in the columns ``proposal`` and ``mode``; n + 1 is token n."""


@dataclass
class Trace:
    """Completions of some rollout files; C completions, N tokens in all, M prompt tokens in all.

    Attributes:
        tokens: Distinct token ids.
        columns: ``committed`` [N] int32 into ``tokens``; ``proposal`` and ``mode`` [N] int32, see :data:`SAME`;
            ``corrected`` [N] uint8; the :data:`FLOATS` [N] float32; ``prompts`` [M] int32 into ``tokens``.
        files: ``{"name", "method", "behavior", "step", "rows"}`` of each file, None where not recorded; the behavior of
            a method that is not registered is not known.
        completions: C values each: ``file``, ``row``, ``start`` (first token in the columns), ``length``, ``prompt``,
            ``prompt_key``, ``sample``, ``finish``, ``version``, ``radius``, ``seed`` (text, 64 bits), ``correct``
            (None where not known).
        prompts: (start, length) of each distinct prompt in ``columns["prompts"]``.
        notes: Sentences about what was left out.
    """

    tokens: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]
    files: list[dict[str, Any]]
    completions: dict[str, list[Any]]
    prompts: list[tuple[int, int]]
    notes: list[str] = field(default_factory=list)


@dataclass
class _File:
    facts: dict[str, Any]
    columns: dict[str, npt.NDArray[Any]]
    rows: dict[str, list[Any]]
    prompt_ids: list[list[int]]


def read_trace(
    files: Sequence[Path],
    *,
    limit: int | None = None,
    always: Mapping[str, Collection[int]] | None = None,
    judge: Judge | None = None,
    notes: Sequence[str] = (),
) -> Trace:
    """Read rollout files.

    Args:
        files: Rollout files, in the order in which their completions are listed.
        limit: Most completions of a file, evenly spaced over it; None for all.
        always: By name of a file, rows that are taken beyond the limit.
        judge: Says which completions are right; None where nothing does.
        notes: Sentences for the reader about what was left out before.

    Raises:
        RolloutFileError: If a file is missing, damaged, empty or of another schema version.
    """
    names = _labels(files)
    kept = always or {}
    read = [
        _read_file(path, name, limit, kept.get(path.name, ()), judge) for path, name in zip(files, names, strict=True)
    ]
    ids = {name: np.concatenate([each.columns[name] for each in read]) for name in ("committed", "proposal", "mode")}
    prompts: dict[tuple[int, ...], int] = {}
    completions: dict[str, list[Any]] = {"file": [], "start": [], "prompt": [], **{key: [] for key in read[0].rows}}
    start = 0
    for number, each in enumerate(read):
        for key, values in each.rows.items():
            completions[key] += values
        completions["file"] += [number] * len(each.prompt_ids)
        completions["prompt"] += [prompts.setdefault(tuple(prompt), len(prompts)) for prompt in each.prompt_ids]
        for length in each.rows["length"]:
            completions["start"].append(start)
            start += length
    prompt_ids = np.array([token for prompt in prompts for token in prompt], dtype=np.int64)
    tokens, inverse = np.unique(np.concatenate([*ids.values(), prompt_ids]), return_inverse=True)
    parts = np.split(inverse, np.cumsum([len(values) for values in ids.values()]))
    indices = dict(zip((*ids, "prompts"), parts, strict=True))
    committed = indices["committed"]
    columns: dict[str, npt.NDArray[Any]] = {"committed": committed.astype("<i4")}
    for name in ("proposal", "mode"):
        other = np.where(indices[name] == committed, SAME, indices[name] + 1)
        columns[name] = np.where(ids[name] < 0, UNKNOWN, other).astype("<i4")
    for name in ("corrected", *FLOATS):
        columns[name] = np.concatenate([each.columns[name] for each in read])
    columns["prompts"] = indices["prompts"].astype("<i4")
    lengths = [len(prompt) for prompt in prompts]
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].tolist()
    facts = [each.facts for each in read]
    left_out = (
        [_limit_note(limit, bool(kept))] if limit is not None and any(each["rows"] > limit for each in facts) else []
    )
    return Trace(tokens, columns, facts, completions, list(zip(starts, lengths, strict=True)), [*notes, *left_out])


def pack(trace: Trace, title: str, texts: TokenTexts | None) -> bytes:
    """The data of the page: gzip of a length (4 bytes, little-endian), JSON of that length, and the columns.

    The bytes of a column lie in planes, all first bytes before all second ones, which packs far better.

    Args:
        trace: What to show.
        title: Plain text.
        texts: Looks up tokens; without it ids are shown.
    """
    found = texts(trace.tokens.tolist()) if texts else []
    facts = {
        "title": title,
        "decoded": texts is not None,
        "ids": trace.tokens.tolist(),
        "texts": [token.text for token in found],
        "raw": {index: list(token.raw) for index, token in enumerate(found) if token.raw is not None},
        "special": [index for index, token in enumerate(found) if token.special],
        "files": trace.files,
        "completions": trace.completions,
        "prompts": trace.prompts,
        "notes": trace.notes,
        "columns": [[name, values.dtype.str[-2:], len(values)] for name, values in trace.columns.items()],
    }
    head = json.dumps(facts, ensure_ascii=True, allow_nan=False).encode()
    planes = [
        values.view(np.uint8).reshape(len(values), values.dtype.itemsize).T.tobytes()
        for values in trace.columns.values()
    ]
    return gzip.compress(b"".join([len(head).to_bytes(4, "little"), head, *planes]), compresslevel=6, mtime=0)


def _read_file(path: Path, name: str, limit: int | None, always: Collection[int], judge: Judge | None) -> _File:
    table, facts = read_rollout_table(path)
    rows = np.arange(table.num_rows)
    if limit is not None and table.num_rows > limit:
        rows = np.union1d(np.linspace(0, table.num_rows - 1, limit).round().astype(int), np.array([*always], dtype=int))
    total, table = table.num_rows, table.take(pa.array(rows)).combine_chunks()
    step = int(facts["step"]) if str(facts.get("step", "")).isdecimal() else None
    lengths = np.asarray(table["completion_ids"].combine_chunks().value_lengths().fill_null(0).to_numpy(), dtype=int)

    def column(source: str, fill: Any, dtype: str) -> npt.NDArray[Any]:
        return _flat(path, table, source, lengths, fill).astype(dtype)

    columns = {
        "committed": column("completion_ids", UNKNOWN, "<i8"),
        "proposal": column("proposal_ids", UNKNOWN, "<i8"),
        "mode": column("teacher_mode_ids", UNKNOWN, "<i8"),
        "corrected": column("correction_mask", False, "u1"),
        **{each: column(each, np.nan, "<f4") for each in FLOATS},
    }
    committed, ends = columns["committed"], np.cumsum(lengths)
    prompt_ids = [ids or [] for ids in table["prompt_ids"].to_pylist()]
    keys, samples = table["prompt_key"].to_pylist(), table["sample_index"].to_pylist()
    correct: list[bool | None] = [None] * len(rows)
    if judge is not None:
        parts = [committed[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]
        correct = list(judge(Drawn(step, keys, samples, prompt_ids, parts)))
        assert len(correct) == len(rows), "a judge says something of each completion"
    values = {
        "row": rows.tolist(),
        "length": lengths.tolist(),
        "prompt_key": keys,
        "sample": samples,
        "finish": table["finish_reason"].to_pylist(),
        "version": table["student_version"].to_pylist(),
        "radius": table["trust_region_radius"].to_pylist(),
        "seed": [None if seed is None else str(seed) for seed in table["seed"].to_pylist()],
        "correct": correct,
    }
    method = facts.get("method")
    behavior = get_method(method).behavior if method in method_names() else None
    described = {"name": name, "method": method, "behavior": behavior, "step": step, "rows": total}
    return _File(described, columns, values, prompt_ids)


def _flat(path: Path, table: pa.Table, name: str, lengths: npt.NDArray[Any], fill: Any) -> npt.NDArray[Any]:
    """The values of all rows in one array; a row without them holds the fill."""
    lists = table[name].combine_chunks()
    known = np.asarray(lists.is_valid())
    own = np.asarray(lists.value_lengths().fill_null(0).to_numpy(), dtype=int)
    if not np.array_equal(own[known], lengths[known]):
        raise RolloutFileError(f"{path} is damaged: {name} and completion_ids differ in length; write it again")
    flat = lists.flatten()
    values = flat.fill_null(fill).to_numpy(zero_copy_only=False) if flat.null_count else flat.to_numpy(False)
    if known.all():
        return np.asarray(values)
    result = np.full(int(lengths.sum()), fill, dtype=values.dtype)
    result[np.repeat(known, lengths)] = values
    return result


def _labels(files: Sequence[Path]) -> list[str]:
    """Names of the files, with as much of the path as tells them apart."""
    names = [path.name for path in files]
    if len(set(names)) == len(names):
        return names
    whole = [os.path.abspath(path) for path in files]
    common = os.path.commonpath(whole)
    return [Path(os.path.relpath(path, common)).as_posix() for path in whole]


def _limit_note(limit: int, others: bool) -> str:
    rest = ", and the most corrected ones" if others else ""
    return f"At most {limit} completions of each file are here, evenly spaced over it{rest}."
