"""Which rolled-out completions are right: graded against a prompt set's answers, or read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from saki.analysis.trace import Drawn, Judge
from saki.config import UsageError
from saki.config.sources import grader, prompt_rows
from saki.evaluation import GradingPool


def graded_by(name: str, tokenizer: Any, stack: ExitStack, *, seed: int = 0) -> Judge:
    """A judge that grades against the answers of a prompt set.

    Args:
        name: The prompt set that was rolled out.
        tokenizer: Decodes completions.
        stack: Ends the workers that grade, where the prompt set needs any.
        seed: Seed of the lab's problems.

    Raises:
        UsageError: If there is no tokenizer, or if the prompt set has no answers.
    """
    if tokenizer is None:
        raise UsageError("answers are graded on text, and no tokenizer is known; give it with --model")
    rows = prompt_rows(name, seed=seed)
    if not len(rows) or rows[0].get("answer") is None:
        raise UsageError(f"the prompt set {name} has no field answer; give another with --answers, or --samples")
    of_lab = grader(name)
    pool = GradingPool() if of_lab is None else None
    if pool is not None:
        stack.enter_context(pool)

    def judge(drawn: Drawn) -> list[bool | None]:
        answers = [str(_row(rows, key, name)["answer"]) for key in drawn.prompt_keys]
        for key, ids in zip(drawn.prompt_keys, drawn.prompt_ids, strict=True):
            _check_prompt(_text(rows[key]["prompt"]), tokenizer.decode(ids), key, name)
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in drawn.completion_ids]
        if pool is None:
            assert of_lab is not None
            return [of_lab(text, answer) for text, answer in zip(texts, answers, strict=True)]
        verdicts = pool.grade(texts, answers)
        return [None if verdict == "timeout" else verdict == "correct" for verdict in verdicts]

    return judge


def stored_in(path: Path, tokenizer: Any) -> Judge:
    """A judge that reads a file: the samples of ``saki eval``, or verdicts by prompt, sample and, where given, step.

    Args:
        path: Parquet with ``prompt_key`` or ``problem_index``, ``sample_index``, ``correct`` and, if it likes, ``step``
            and ``completion``. Where a completion stands there, it must be the text that was rolled out.
        tokenizer: Decodes completions; None leaves those unknown that the file identifies by their text.

    Raises:
        UsageError: If the file is missing, damaged, or lacks a column.
    """
    try:
        columns = pq.read_table(path).to_pydict()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path} is not a readable parquet file of samples ({reason}); check --samples") from error
    key_name = "prompt_key" if "prompt_key" in columns else "problem_index"
    absent = [name for name in (key_name, "sample_index", "correct") if name not in columns]
    if absent:
        raise UsageError(f"{path} lacks the columns {', '.join(absent)}; expected prompt_key, sample_index and correct")
    nothing = [None] * len(columns["correct"])
    steps, texts = columns.get("step", nothing), columns.get("completion", nothing)
    keys = zip(steps, columns[key_name], columns["sample_index"], strict=True)
    found = dict(zip(keys, zip(columns["correct"], texts, strict=True), strict=True))

    def judge(drawn: Drawn) -> list[bool | None]:
        verdicts: list[bool | None] = []
        for key, sample, ids in zip(drawn.prompt_keys, drawn.sample_indices, drawn.completion_ids, strict=True):
            correct, text = found.get((drawn.step, key, sample)) or found.get((None, key, sample)) or (None, None)
            if text is not None:
                own = None if tokenizer is None else tokenizer.decode(ids, skip_special_tokens=True)
                correct = correct if own == text else None
            verdicts.append(correct)
        return verdicts

    return judge


def _row(rows: Any, key: int, name: str) -> Any:
    if not 0 <= key < len(rows):
        raise UsageError(f"prompt {key} is not among the {len(rows)} rows of {name}; give the set that was rolled out")
    return rows[key]


def _check_prompt(written: str, rendered: str, key: int, name: str) -> None:
    """Another set, or another seed of the lab, would grade against answers to other questions."""
    if "".join(written.split()) not in "".join(rendered.split()):
        raise UsageError(
            f"prompt {key} of {name} is not the one that was rolled out ({written[:60]!r} against {rendered[-60:]!r}); "
            "give the prompt set of the run with --answers"
        )


def _text(prompt: str | Sequence[dict[str, Any]]) -> str:
    """The user's part of a prompt: plain text, or the last message of a chat."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
