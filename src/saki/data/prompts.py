"""Render a data set's prompts to token ids: once, with the student's tokenizer, for all models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from saki.data.template_date import NAME as DATE
from saki.data.template_date import fix_date, note_date, parse_date
from saki.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

DEFAULT_TEMPLATE_KWARGS = {"enable_thinking": False}
"""Template variables unless the caller sets them. Templates that do not know a variable ignore it."""

_OWN_ARGUMENTS = ("tokenize", "add_generation_prompt", "continue_final_message", "return_dict")


class PromptError(ValueError):
    """A data set's prompts cannot be rendered."""


@dataclass(frozen=True)
class RenderedPrompts:
    """Prompts as ids, and what became of the rows that are missing.

    Attributes:
        prompts: One prompt per kept row; ``key`` is the row index in the data set before filtering.
        rows: Kept row indices, in order; ``rows[i] == prompts[i].key``.
        dropped: Counts by reason: ``"too_long"`` (more than the limit; never truncated) and ``"empty"`` (no text).
        notes: Decisions taken on the way, one sentence each, for the log.
    """

    prompts: list[Prompt]
    rows: list[int]
    dropped: dict[str, int]
    notes: tuple[str, ...] = ()


def render_prompts(
    dataset: Any,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_prompt_length: int,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    prompt_suffix: str | None = None,
) -> RenderedPrompts:
    """Render the ``prompt`` column to ids.

    A plain string is tokenised as it stands, with the tokenizer's own special tokens (such as a begin token). A
    conversation goes through the chat template with a generation prompt, and the rendered text is tokenised without
    special tokens, since the template writes them. A tokenizer without a chat template can still take a
    conversation of one user message: its content is treated as a plain string, with a note; any other conversation
    is refused.

    Args:
        dataset: ``datasets.Dataset`` or a sequence of dicts with a ``prompt`` column: plain strings, or lists of
            messages with ``role`` and ``content``.
        tokenizer: The student's tokenizer.
        max_prompt_length: Most tokens per prompt. Longer prompts are counted and skipped, never truncated.
        chat_template_kwargs: Variables for the chat template, over :data:`DEFAULT_TEMPLATE_KWARGS` (thinking off);
            ``strftime_now`` is the date, as in ``"2026-12-31"``, that the template takes for today.
        prompt_suffix: Text appended as it stands (bring your own space or line break) to a plain prompt or to the
            last user message.

    Returns:
        The prompts in row order.

    Raises:
        PromptError: If the data set has no rows or no ``prompt`` column, if a prompt is not text, if a conversation
            needs a template that the tokenizer lacks or does not end in a turn to answer, or if no prompt is left.
        ValueError: If ``max_prompt_length`` is below 1, or ``strftime_now`` is no date.
    """
    if max_prompt_length < 1:
        raise ValueError(f"max_prompt_length must be at least 1, got {max_prompt_length}")
    variables = {**DEFAULT_TEMPLATE_KWARGS, **(chat_template_kwargs or {})}
    own = sorted(set(variables) & set(_OWN_ARGUMENTS))
    if own:
        raise PromptError(f"chat_template_kwargs may not set {own[0]!r}, which rendering sets itself; remove it")
    day = variables.pop(DATE, None)
    date = None if day is None else parse_date(day)

    plain: dict[int, str] = {}
    templated: dict[int, str] = {}
    dropped = {"too_long": 0, "empty": 0}
    untemplated = 0
    for row, prompt in _prompt_column(dataset):
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _messages(prompt, row)
        if not any(message["content"].strip() for message in messages):
            dropped["empty"] += 1
            continue
        if not isinstance(prompt, str):
            _check_last(messages, row)
        if prompt_suffix:
            _append_suffix(messages, prompt_suffix, row)
        if isinstance(prompt, str):
            plain[row] = messages[0]["content"]
        elif tokenizer.chat_template is None:
            plain[row] = _content_without_template(messages, row)
            untemplated += 1
        else:
            if not templated:
                variables = _for_the_day(variables, tokenizer, date)
            templated[row] = _apply_template(tokenizer, messages, variables, row)

    ids = {
        **_tokenize(tokenizer, plain, add_special_tokens=True),
        **_tokenize(tokenizer, templated, add_special_tokens=False),
    }
    prompts: list[Prompt] = []
    for row in sorted(ids):
        if not ids[row]:
            dropped["empty"] += 1
        elif len(ids[row]) > max_prompt_length:
            dropped["too_long"] += 1
        else:
            prompts.append(Prompt(key=row, token_ids=tuple(ids[row])))

    total = len(prompts) + sum(dropped.values())
    notes: list[str] = []
    if untemplated:
        notes.append(
            f"the tokenizer has no chat template: {untemplated} single user messages were rendered as plain text"
        )
    if any(dropped.values()):
        notes.append(
            f"{total - len(prompts)} of {total} prompts were dropped: {dropped['too_long']} above "
            f"{max_prompt_length} tokens, {dropped['empty']} empty"
        )
    for note in notes:
        logger.warning("%s", note)
    if not prompts:
        raise PromptError(
            f"no prompt is left of {total}: {dropped['too_long']} are above {max_prompt_length} tokens and "
            f"{dropped['empty']} are empty; raise max_prompt_length or check the data set"
        )
    return RenderedPrompts(prompts, [prompt.key for prompt in prompts], dropped, tuple(notes))


def _prompt_column(dataset: Any) -> Iterator[tuple[int, Any]]:
    """Yield (row index, prompt)."""
    if isinstance(dataset, Mapping):
        raise PromptError(f"expected one data set, got the splits {sorted(map(str, dataset))}; choose one of them")
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise PromptError(
            f"expected a datasets.Dataset or a list of rows, got {type(dataset).__name__}; streamed data sets have no "
            "row numbers, so load it whole"
        )
    if len(dataset) == 0:
        raise PromptError("the data set has no rows; expected at least one prompt")
    columns = getattr(dataset, "column_names", None)
    if columns is not None:
        if "prompt" not in columns:
            raise _no_prompt_column(columns)
        yield from enumerate(dataset["prompt"])
        return
    for row, record in enumerate(dataset):
        if not isinstance(record, Mapping):
            raise PromptError(f"row {row} is a {type(record).__name__}, expected a dict with a 'prompt' field")
        if "prompt" not in record:
            raise _no_prompt_column(record, row)
        yield row, record["prompt"]


def _no_prompt_column(columns: Any, row: int | None = None) -> PromptError:
    where = "the data set" if row is None else f"row {row}"
    return PromptError(
        f"{where} has no 'prompt' column, only {sorted(map(str, columns))}; rename the one that holds it"
    )


def _messages(prompt: Any, row: int) -> list[dict[str, Any]]:
    """Messages of a conversation, without unset fields (which columnar files fill in with None)."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise PromptError(
            f"the prompt of row {row} is a {type(prompt).__name__}, expected a string or a list of messages"
        )
    messages = []
    for message in prompt:
        if not isinstance(message, Mapping):
            raise PromptError(
                f"the prompt of row {row} is a list with a {type(message).__name__} in it, expected text or a list of "
                "messages with 'role' and 'content'"
            )
        if not isinstance(message.get("role"), str):
            layout = " (here 'from' and 'value': rename these, and human to user, gpt to assistant)"
            raise PromptError(
                f"row {row} has a message without a role, expected dicts with 'role' and 'content'"
                + (layout if {"from", "value"} <= message.keys() else "")
            )
        if not isinstance(message.get("content"), str):
            raise PromptError(
                f"row {row} has a message whose content is a {type(message.get('content')).__name__}, expected text"
            )
        messages.append({key: value for key, value in message.items() if value is not None})
    return messages


def _check_last(messages: list[dict[str, Any]], row: int) -> None:
    if messages[-1]["role"] == "assistant":
        raise PromptError(f"the prompt of row {row} ends in an assistant message, expected a turn to answer; drop it")


def _append_suffix(messages: list[dict[str, Any]], suffix: str, row: int) -> None:
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"] += suffix
            return
    raise PromptError(f"the prompt of row {row} has no user message to append the suffix to; expected at least one")


def _content_without_template(messages: list[dict[str, Any]], row: int) -> str:
    if len(messages) != 1 or messages[0]["role"] != "user":
        raise PromptError(
            f"the prompt of row {row} is a conversation of {len(messages)} messages, but the tokenizer has no chat "
            "template; use a tokenizer with one, or plain string prompts"
        )
    return messages[0]["content"]


def _for_the_day(
    variables: dict[str, Any], tokenizer: PreTrainedTokenizerBase, date: datetime | None
) -> dict[str, Any]:
    """Variables with a template that has the date in it, where one is given."""
    template = tokenizer.get_chat_template(variables.get("chat_template"))
    if date is None:
        note_date(template, variables)
        return variables
    # The library turns functions among the variables into text, so the template itself is given the date.
    return {**variables, "chat_template": fix_date(template, date)}


def _apply_template(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], variables: Mapping[str, Any], row: int
) -> str:
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
    except TemplateError as error:
        raise PromptError(f"the chat template refuses the prompt of row {row}: {error}") from error
    assert isinstance(text, str)
    return text


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: dict[int, str], *, add_special_tokens: bool
) -> dict[int, list[int]]:
    if not texts:
        return {}
    encoded = tokenizer(
        list(texts.values()), add_special_tokens=add_special_tokens, truncation=False, padding=False, verbose=False
    )
    return dict(zip(texts, encoded["input_ids"], strict=True))
