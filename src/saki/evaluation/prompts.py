"""Prompts of benchmarks: their identity in the random numbers, and whether the model has room for them."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from saki.data import render_prompts
from saki.evaluation.benchmarks.base import Benchmark
from saki.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NUM_KEYS = 2**32


def prompt_key(benchmark: str, index: int) -> int:
    """Identity of a problem in the random numbers: ``(crc32(name) + index) mod 2**32``.

    It depends on the benchmark's name and the problem's index only, so a problem gets the same samples
    whichever benchmarks are evaluated beside it, however many problems are taken and in whatever batch. The
    seeds of evaluation and training differ by domain, so the keys of training prompts do not matter here.

    Args:
        benchmark: Name of the benchmark.
        index: Index of the problem in it.

    Returns:
        Key in [0, 2**32).
    """
    return (zlib.crc32(benchmark.encode()) + index) % _NUM_KEYS


def render_benchmarks(
    tokenizer: PreTrainedTokenizerBase,
    benchmarks: Sequence[Benchmark],
    *,
    max_completion_length: int,
    max_positions: int | None,
    prompt_suffix: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[list[Prompt]]:
    """Prompts of each benchmark, under keys of the evaluation, each with room for its completion.

    Args:
        tokenizer: Tokenizer of the model.
        benchmarks: The benchmarks.
        max_completion_length: Most tokens a completion.
        max_positions: Longest sequence that the model takes (tokens), or None where there is no limit.
        prompt_suffix: Text appended to every prompt.
        chat_template_kwargs: Variables for the chat template of benchmarks that use it.

    Raises:
        ValueError: If no benchmark is given, if two share a name or a key, or if a prompt is empty or too long.
    """
    if not benchmarks:
        raise ValueError("expected at least one benchmark to evaluate, got none")
    owners: dict[int, str] = {}
    rendered = []
    for benchmark in benchmarks:
        rows = [
            {"prompt": [{"role": "user", "content": text}] if benchmark.chat else text} for text in benchmark.prompts
        ]
        found = render_prompts(
            rows,
            tokenizer,
            max_prompt_length=sys.maxsize,  # no problem may be left out
            prompt_suffix=prompt_suffix,
            chat_template_kwargs=chat_template_kwargs,
        )
        if found.rows != list(range(len(benchmark))):
            missing = min(set(range(len(benchmark))) - set(found.rows))
            raise ValueError(f"problem {missing} of benchmark {benchmark.name} has an empty prompt; give it a text")
        prompts = []
        for index, prompt in enumerate(found.prompts):
            key = prompt_key(benchmark.name, index)
            if key in owners:
                raise ValueError(
                    f"benchmarks {owners[key]} and {benchmark.name} share the prompt key {key}, so their samples "
                    "would not be independent; rename one of them or evaluate them apart"
                )
            owners[key] = benchmark.name
            length = len(prompt.token_ids)
            if max_positions is not None and length + max_completion_length > max_positions:
                room = max_positions - length
                remedy = f"lower --max_new_tokens to {room} or less" if room > 0 else "leave this problem out"
                raise ValueError(
                    f"problem {index} of benchmark {benchmark.name} has {length} tokens, with max_new_tokens "
                    f"{max_completion_length} it can grow to {length + max_completion_length}, but the model takes "
                    f"{max_positions}; {remedy}"
                )
            prompts.append(Prompt(key=key, token_ids=prompt.token_ids))
        rendered.append(prompts)
    return rendered
