"""Mean@k and Pass@k of a model of the embedded pair, by plain sampling at temperature 1."""

from __future__ import annotations

import inspect
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache

from saki.lab.problems import Problem, grade
from saki.lab.tokenizer import EOS_ID

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_COMPLETION_LENGTH = 64
"""Cap on new tokens; the longest clean trace, end-of-sequence included, just fits."""

_PROMPTS_PER_BATCH = 32


@dataclass(frozen=True)
class Score:
    """Success of a model on a set of problems.

    Attributes:
        mean_at_k: Share of all completions with the right answer, in percent.
        pass_at_k: Share of problems with at least one right completion, in percent.
        mean_length: Mean completion length, in tokens, end-of-sequence included.
    """

    mean_at_k: float
    pass_at_k: float
    mean_length: float


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: list[Problem],
    generator: torch.Generator,
    num_samples: int = 8,
) -> Score:
    """Sample completions of every problem and grade them.

    Args:
        model: A model of the pair, in evaluation mode.
        tokenizer: The pair's tokenizer.
        problems: What to solve; at least one.
        generator: Source of the samples, on the model's device.
        num_samples: Completions a problem (k).

    Returns:
        The score over all problems.

    Raises:
        ValueError: If ``problems`` is empty or ``num_samples`` is below 1.
    """
    if not problems or num_samples < 1:
        raise ValueError(f"got {len(problems)} problems and num_samples {num_samples}; expected at least 1 of each")
    by_length: dict[int, list[tuple[Problem, list[int]]]] = defaultdict(list)
    for problem in problems:
        prompt_ids = tokenizer(problem.prompt)["input_ids"]
        by_length[len(prompt_ids)].append((problem, prompt_ids))
    num_right: list[int] = []
    lengths: list[int] = []
    for _, group in sorted(by_length.items()):
        for start in range(0, len(group), _PROMPTS_PER_BATCH):
            batch = group[start : start + _PROMPTS_PER_BATCH]
            prompt_ids = torch.tensor([ids for _, ids in batch]).repeat_interleave(num_samples, dim=0)
            completions = sample_completions(model, prompt_ids, generator)
            lengths += map(len, completions)
            texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
            for index, (problem, _) in enumerate(batch):
                own = texts[index * num_samples : (index + 1) * num_samples]
                num_right.append(sum(grade(text, problem.answer) for text in own))
    return Score(
        mean_at_k=100 * fmean(right / num_samples for right in num_right),
        pass_at_k=100 * fmean(right > 0 for right in num_right),
        mean_length=fmean(lengths),
    )


@torch.inference_mode()
def sample_completions(model: PreTrainedModel, prompt_ids: torch.Tensor, generator: torch.Generator) -> list[list[int]]:
    """Sample one completion a row at temperature 1 from the full vocabulary.

    Args:
        model: Causal language model of the pair, in evaluation mode.
        prompt_ids: Prompts of one length [B, T], without padding.
        generator: Source of the samples.

    Returns:
        Token ids of each completion, up to and with the end-of-sequence token, at most `MAX_COMPLETION_LENGTH`.
    """
    completions: list[list[int]] = [[] for _ in range(len(prompt_ids))]
    open_rows = torch.ones(len(prompt_ids), dtype=torch.bool)
    input_ids = prompt_ids.to(model.device)
    cache = {_cache_argument(model): DynamicCache()}
    for _ in range(MAX_COMPLETION_LENGTH):
        logits = model(input_ids=input_ids, use_cache=True, logits_to_keep=1, **cache).logits
        probabilities = logits[:, -1].float().softmax(-1)
        input_ids = torch.multinomial(probabilities, 1, generator=generator)
        chosen = input_ids[:, 0].cpu()
        for row in open_rows.nonzero()[:, 0].tolist():
            completions[row].append(int(chosen[row]))
        open_rows &= chosen != EOS_ID
        if not open_rows.any():
            break
    return completions


def _cache_argument(model: PreTrainedModel) -> str:
    """Return what this version of transformers calls the cache: ``cache``, or ``past_key_values`` before."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
