"""A benchmark of mathematical problems as a record: where it lies, what its rows hold, and how many there are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from saki.evaluation.benchmarks.base import Benchmark, GradeFunction, check_benchmark_name
from saki.evaluation.benchmarks.rows import BenchmarkDataError, file_rows, find_file, hub_rows
from saki.evaluation.grading import GradingPool
from saki.types import check_number

PROMPT_SUFFIX = " Please reason step by step, and put your final answer within \\boxed{}."
"""What stands behind every problem of these benchmarks unless the caller sets another suffix."""

WITHOUT_REPAIR = "without_e_notation_repair"
"""Name of the second figures of a benchmark whose gold answers are in e-notation."""

_WRITTEN_SUFFIX = re.compile(
    r"\s*Please reason step by step, and put your final answer within \\boxed\s*\{+\}+\s*\.?\s*$"
)


@dataclass(frozen=True)
class BenchmarkSpec:
    """Where a benchmark comes from and what must be true of it. One small file a benchmark holds one of these.

    Attributes:
        name: As in ``--benchmarks``; names its files too.
        title: Its name in print.
        num_problems: How many problems it has, or None where that is not checked.
        hub_id: Data set on the hub, or None where it is a local file only.
        split: Split of it.
        revision: Commit of the data set; None takes the newest.
        question_fields: Fields that may hold the problem, the first one present is taken.
        answer_fields: Fields that may hold the right answer, text, a number, or a list of answers.
        license: Licence of the data set as its card states it.
        file_names: Names, without ending, that a local file may have beside ``name``.
        path: A local file that is always taken.
        reports_without_repair: Whether the figures without the repair of e-notation are reported as well.
        grade: Grader, or None for math-verify.

    Raises:
        ValueError: If the name cannot name a file, if a field has another type, or if neither a hub id nor a file is
            given.
    """

    name: str
    title: str = ""
    num_problems: int | None = None
    hub_id: str | None = None
    split: str = "test"
    revision: str | None = None
    question_fields: tuple[str, ...] = ("problem", "question")
    answer_fields: tuple[str, ...] = ("answer",)
    license: str = "see the source"
    file_names: tuple[str, ...] = ()
    path: str | None = None
    reports_without_repair: bool = False
    grade: GradeFunction | None = None

    def __post_init__(self) -> None:
        check_benchmark_name(self.name)
        for field in ("title", "hub_id", "split", "revision", "license", "path"):
            value = getattr(self, field)
            if not isinstance(value, str) and (value is not None or field in ("title", "split", "license")):
                raise ValueError(f"{field} of benchmark {self.name} must be text, got {value!r}; put it in quotes")
        for field in ("question_fields", "answer_fields", "file_names"):
            value = getattr(self, field)
            if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
                raise ValueError(f"{field} of benchmark {self.name} must be a list of texts, got {value!r}")
        if self.num_problems is not None:
            check_number(f"num_problems of benchmark {self.name}", self.num_problems, least=1, whole=True)
        if not isinstance(self.reports_without_repair, bool):
            raise ValueError(
                f"reports_without_repair of benchmark {self.name} must be true or false, "
                f"got {self.reports_without_repair!r}"
            )
        if not self.hub_id and not self.path:
            raise ValueError(f"benchmark {self.name} has neither a hub_id nor a path; give one of them")


def load_benchmark(
    spec: BenchmarkSpec,
    pool: GradingPool | None,
    *,
    data_dir: Path | None = None,
    limit: int | None = None,
    prompt_suffix: str | None = None,
) -> Benchmark:
    """Read a benchmark's problems and check them.

    Files may hold the fields of the hub's rows, or ``prompt`` (a text or one user message) and
    ``reward_model.ground_truth``. A suffix of the usual wording that a file's problems end in is taken away, so that
    the prompts are the same wherever the problems come from.

    Args:
        spec: The benchmark.
        pool: Workers that grade; may be None where the benchmark has a grader of its own.
        data_dir: Folder of parquet or JSON-lines files to read instead of the hub.
        limit: Take the first so many problems only; the whole file is checked all the same.
        prompt_suffix: Text behind every problem; :data:`PROMPT_SUFFIX` if None.

    Returns:
        The benchmark. Its prompts go through the chat template where the tokenizer has one.

    Raises:
        BenchmarkDataError: If the data are not there, have another size, lack a field, or hold an answer that is
            neither text nor a number.
    """
    if spec.path is not None:
        source: str | Path = Path(spec.path)
    elif data_dir is not None:
        source = find_file(data_dir, spec.name, spec.file_names)
    else:
        source = f"{spec.hub_id}@{spec.revision or 'main'}"
    if isinstance(source, Path):
        rows = file_rows(source)
    else:
        rows = hub_rows(spec.hub_id or "", spec.split, spec.revision)
    if spec.num_problems is not None and len(rows) != spec.num_problems:
        raise BenchmarkDataError(
            f"{source} has {len(rows)} problems, {spec.name} has {spec.num_problems}; "
            "it is another benchmark or another edition of it, so take the right file"
        )
    suffix = PROMPT_SUFFIX if prompt_suffix is None else prompt_suffix
    prompts, answers = [], []
    for index, row in enumerate(rows):
        prompts.append(_WRITTEN_SUFFIX.sub("", _question(row, spec, f"row {index} of {source}")).strip() + suffix)
        answers.append(_answer(row, spec, f"row {index} of {source}"))
    grade, also = graders(spec, pool)
    return Benchmark(
        name=spec.name,
        prompts=tuple(prompts[:limit]),
        answers=tuple(answers[:limit]),
        grade=grade,
        source=str(source),
        chat=True,
        also=also,
    )


def graders(
    spec: BenchmarkSpec, pool: GradingPool | None
) -> tuple[GradeFunction, tuple[tuple[str, GradeFunction], ...]]:
    """The grader of a benchmark, and further ones by name.

    Args:
        spec: The benchmark.
        pool: Workers that grade; may be None where the benchmark has a grader of its own.
    """
    if spec.grade is not None:
        return spec.grade, ()
    assert pool is not None, "a benchmark that math-verify grades needs a pool"
    also: tuple[tuple[str, GradeFunction], ...] = ()
    if spec.reports_without_repair:
        also = ((WITHOUT_REPAIR, partial(pool.grade, e_notation=False)),)
    return pool.grade, also


def _question(row: Mapping[str, Any], spec: BenchmarkSpec, where: str) -> str:
    for field in (*spec.question_fields, "prompt"):
        value = row.get(field)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:
            value = value[0].get("content") if isinstance(value[0], Mapping) else None
        if isinstance(value, str) and value.strip():
            return value
    raise _missing("problem", (*spec.question_fields, "prompt"), row, spec, where)


def _answer(row: Mapping[str, Any], spec: BenchmarkSpec, where: str) -> str:
    reward_model = row.get("reward_model")
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    for value in (*(row.get(field) for field in spec.answer_fields), truth):
        if value is None:
            continue
        parts = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
        for part in parts:
            number = isinstance(part, int | float | Decimal) and not isinstance(part, bool) and math.isfinite(part)
            if not isinstance(part, str) and not number:
                raise BenchmarkDataError(
                    f"{where} has the answer {str(part)[:60]!r} ({type(part).__name__}), expected text, a finite "
                    f"number or a list of them; mend the row, or name another field in answer_fields of {spec.name}"
                )
        if text := ", ".join(map(str, parts)).strip():
            return text
    raise _missing("answer", (*spec.answer_fields, "reward_model.ground_truth"), row, spec, where)


def _missing(
    what: str, fields: Sequence[str], row: Mapping[str, Any], spec: BenchmarkSpec, where: str
) -> BenchmarkDataError:
    return BenchmarkDataError(
        f"{where} has no {what} of {spec.name}: expected it in {' or '.join(fields)}, the row has {sorted(row)}; "
        "rename the field"
    )
