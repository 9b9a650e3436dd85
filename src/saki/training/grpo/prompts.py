"""Rows for TRL: the prompts that fit, with their answers."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from saki.data import RenderedPrompts, render_prompts


def graded_prompts(
    rows: Any, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int
) -> tuple[Dataset, RenderedPrompts]:
    """The rows that fit, in order, and their ids.

    TRL renders each prompt anew, with the chat template and thinking off, which gives the ids that saki has rendered.
    A tokenizer without a chat template gets the text of a single user message, as in distillation.

    Args:
        rows: ``datasets.Dataset`` or a list of dicts with ``prompt``, plain or conversational, and ``answer``.
        tokenizer: The teacher's tokenizer.
        max_prompt_length: Longer prompts are dropped and counted (tokens).

    Raises:
        ValueError: If a prompt cannot be rendered, or a row has no answer to grade by.
    """
    rendered = render_prompts(rows, tokenizer, max_prompt_length=max_prompt_length)
    kept = []
    for index in rendered.rows:
        row = rows[index]
        if row.get("answer") is None:
            raise ValueError(
                f"row {index} of the data set has no answer, and GRPO's reward compares with it; saki data drops "
                "such rows"
            )
        prompt = row["prompt"]
        if not isinstance(prompt, str) and tokenizer.chat_template is None:
            prompt = prompt[0]["content"]
        kept.append({"prompt": prompt, "answer": str(row["answer"])})
    return Dataset.from_list(kept), rendered
