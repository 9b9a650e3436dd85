"""Prepare a set of prompts for training: check fields, set the instruction, filter, and count what was dropped."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from saki.data.prompts import PromptError, render_prompts
from saki.files import whole_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LANGUAGES = ("any", "no_cjk")
"""What the language filter keeps: every prompt, or those without Chinese, Japanese or Korean letters."""

REASONS = {
    "empty": "no text in the prompt",
    "no_answer": "no answer",
    "language": "Chinese, Japanese or Korean letters",
    "duplicate": "same prompt as an earlier row",
    "too_long": "more tokens than max_prompt_length",
}
"""Why a row is dropped, in the order in which filters look at it; the first that applies counts."""

_CJK = re.compile(
    "[\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
"""Letters only: full-width digits and punctuation also stand in English texts."""


@dataclass(frozen=True)
class PreparedPrompts:
    """Prepared rows, and what became of the others.

    Attributes:
        rows: ``prompt`` (plain or conversational, as in the source), ``answer`` (text) and ``index`` (the source's own
            where it has one, else its row number), in their final order.
        num_rows: Rows of the source.
        num_unique: Distinct prompts of the source.
        num_conflicting: Distinct prompts whose copies have different answers.
        dropped: Counts by the keys of :data:`REASONS`.
        num_stripped: Kept rows from whose prompt ``strip_suffix`` was removed.
        has_answers: Whether the source has answers; without, the rows have none.
    """

    rows: list[dict[str, Any]]
    num_rows: int
    num_unique: int
    num_conflicting: int
    dropped: dict[str, int]
    num_stripped: int
    has_answers: bool = True

    def to_json(self) -> dict[str, Any]:
        """The counts."""
        return {
            "rows": self.num_rows,
            "unique_prompts": self.num_unique,
            "conflicting_answers": self.num_conflicting,
            "dropped": dict(self.dropped),
            "suffix_removed": self.num_stripped,
            "kept": len(self.rows),
        }


def prepare_prompts(
    dataset: Any,
    *,
    suffix: str | None = None,
    strip_suffix: str | None = None,
    language: str = "any",
    deduplicate: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_prompt_length: int | None = None,
    seed: int | None = None,
) -> PreparedPrompts:
    r"""Check, filter and order the rows of a data set; the text of a prompt is kept but for its instruction.

    Args:
        dataset: Rows with ``prompt`` (text, or messages) and ``answer``, as :func:`saki.data.load_prompt_dataset`
            gives them; without answers if the first row has none, since distillation needs none. A row's ``index``, or
            ``extra_info.index``, is kept as its index.
        suffix: Text appended as it stands to a plain prompt, or to the last user message.
        strip_suffix: Text removed first from the end of prompts that end in it, such as the ``\boxed{{}}`` sentence
            of the DAPO file when ``suffix`` is to replace it.
        language: One of :data:`LANGUAGES`.
        deduplicate: Keep the first of rows whose prompts, as in the source, are equal.
        tokenizer: Counts the tokens for ``max_prompt_length``, through its chat template where it has one.
        max_prompt_length: Most tokens of a prompt with its suffix; None for no limit.
        seed: Seed of a shuffle; None keeps the source's order.

    Raises:
        PromptError: If a row has no prompt, or no answer where the first has one, if a prompt is neither text nor
            messages, if some are text and others messages, if no prompt ends in ``strip_suffix``, or if nothing is
            left.
        ValueError: If ``language`` is unknown, or a length limit comes without a tokenizer.
    """
    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, got {language!r}")
    if max_prompt_length is not None and tokenizer is None:
        raise ValueError("max_prompt_length needs a tokenizer to count with; give one, or leave the limit out")
    dropped = dict.fromkeys(REASONS, 0)
    answers: dict[str, set[str]] = defaultdict(set)
    rows: list[dict[str, Any]] = []
    stripped: list[bool] = []
    num_rows = 0
    has_answers = True
    for number, record in enumerate(_records(dataset)):
        if number == 0:
            has_answers = "answer" in record
        num_rows += 1
        text = _text(record["prompt"], number)
        answer = "" if not has_answers or record["answer"] is None else str(record["answer"]).strip()
        seen = text in answers
        answers[text].add(answer)
        if not text.strip():
            dropped["empty"] += 1
        elif has_answers and not answer:
            dropped["no_answer"] += 1
        elif language == "no_cjk" and _CJK.search(text):
            dropped["language"] += 1
        elif deduplicate and seen:
            dropped["duplicate"] += 1
        else:
            prompt, found = _with_suffix(record["prompt"], strip_suffix, suffix, number)
            stripped.append(found)
            kept_answer = {"answer": answer} if has_answers else {}
            rows.append({"prompt": prompt, **kept_answer, "index": _index(record, number)})
    if strip_suffix and rows and not any(stripped):
        end = _text(rows[0]["prompt"], 0)[-60:]
        raise PromptError(
            f"no prompt ends in strip_suffix {strip_suffix!r} (the first ends in {end!r}); check the text"
        )
    if tokenizer is not None and max_prompt_length is not None and rows:
        rendered = render_prompts(rows, tokenizer, max_prompt_length=sys.maxsize).prompts
        kept = [prompt.key for prompt in rendered if len(prompt.token_ids) <= max_prompt_length]
        dropped["too_long"] = len(rows) - len(kept)
        rows, stripped = [rows[row] for row in kept], [stripped[row] for row in kept]
    if not rows:
        counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
        raise PromptError(f"no row is left of {num_rows} ({counts or 'the source is empty'}); relax a filter")
    if len({type(row["prompt"]) for row in rows}) > 1:
        raise PromptError("some prompts are text and others messages, but a column has one type; split the data set")
    if seed is not None:
        random.Random(f"saki.data order {seed}").shuffle(rows)
    conflicting = sum(len(found) > 1 for found in answers.values())
    return PreparedPrompts(rows, num_rows, len(answers), conflicting, dropped, sum(stripped), has_answers)


def write_prompts(path: Path, prepared: PreparedPrompts, settings: Mapping[str, Any]) -> None:
    """Write the rows as a parquet file that ``saki train --dataset`` takes, whole or not at all.

    Args:
        path: The file.
        prepared: The rows.
        settings: What they were prepared with, JSON values; with the counts they stand in the file's metadata under
            ``saki``.

    Raises:
        DiskFullError: If there is no room.
    """
    table = pa.Table.from_pylist(prepared.rows)
    facts = {"settings": dict(settings), "counts": prepared.to_json()}
    with whole_file(path) as unfinished:
        pq.write_table(table.replace_schema_metadata({"saki": json.dumps(facts)}), unfinished)


def _records(dataset: Any) -> Iterator[Mapping[str, Any]]:
    needed = ["prompt"]
    for number, record in enumerate(dataset):
        if not isinstance(record, Mapping):
            raise PromptError(f"row {number} is a {type(record).__name__}, expected a dict with 'prompt'")
        if number == 0 and "answer" in record:
            needed.append("answer")
        for field in needed:
            if field not in record:
                raise PromptError(
                    f"row {number} has no {field!r}, only {sorted(map(str, record))}; name the column that holds it "
                    f"with --{field}_column"
                )
        yield record


def _text(prompt: Any, row: int) -> str:
    """What makes two prompts the same: the text, or the messages one after another; nothing where there is no text."""
    if prompt is None or (isinstance(prompt, list) and all(_is_blank(each) for each in prompt)):
        return ""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(
        isinstance(each, Mapping) and isinstance(each.get("content"), str) and isinstance(each.get("role"), str)
        for each in prompt
    ):
        raise PromptError(
            f"the prompt of row {row} is no text and no list of messages with 'role' and 'content'; check the data set"
        )
    if len(prompt) == 1:
        return str(prompt[0]["content"])
    return "\n".join(f"{each['role']}: {each['content']}" for each in prompt)


def _is_blank(message: Any) -> bool:
    content = message.get("content", 0) if isinstance(message, Mapping) else message
    return content is None or (isinstance(content, str) and not content.strip())


def _with_suffix(prompt: Any, strip: str | None, suffix: str | None, row: int) -> tuple[Any, bool]:
    """The prompt with another instruction, and whether the old one was found."""
    if isinstance(prompt, str):
        return _exchanged(prompt, strip, suffix)
    messages = [{key: value for key, value in each.items() if value is not None} for each in prompt]
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"], stripped = _exchanged(message["content"], strip, suffix)
            return messages, stripped
    if suffix or strip:
        raise PromptError(f"the prompt of row {row} has no user message for the suffix; expected at least one")
    return messages, False


def _exchanged(text: str, strip: str | None, suffix: str | None) -> tuple[str, bool]:
    stripped = bool(strip) and text.endswith(str(strip))
    return (text.removesuffix(strip or "") if stripped else text) + (suffix or ""), stripped


def _index(record: Mapping[str, Any], number: int) -> str:
    """Text, since sources number their rows in different types and a column has one."""
    extra = record.get("extra_info")
    found = record.get("index", extra.get("index") if isinstance(extra, Mapping) else None)
    return str(number if found is None else found)
