"""Which completions each micro-batch holds: every prompt of a step, repeated for its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler


class CompletionDataset(Dataset[dict[str, int]]):
    """One item per completion to draw: item ``prompt * num_generations + sample``.

    It also carries the epoch, since the library's loaders forward ``set_epoch`` to the data set when they cannot
    reach the sampler.

    Args:
        num_prompts: Rendered prompts.
        num_generations: Samples per prompt.
    """

    def __init__(self, num_prompts: int, num_generations: int) -> None:
        self.num_prompts, self.num_generations = num_prompts, num_generations
        self.epoch = 0

    def __len__(self) -> int:
        return self.num_prompts * self.num_generations

    def __getitem__(self, index: int) -> dict[str, int]:
        prompt, sample = divmod(index, self.num_generations)
        return {"prompt": prompt, "sample": sample}

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch."""
        self.epoch = epoch


class StepSampler(Sampler[int]):
    """A seeded shuffle of the prompts per epoch, each repeated for its samples; the last partial step is dropped.

    The order depends on (seed, epoch) alone: not on the method, the number of ranks or the micro-batch size. When a
    second or later epoch begins, sample indices go on counting from zero; the request seed differs by step.

    Args:
        dataset: What to index.
        prompts_per_step: Prompts per optimizer step.
        seed: Seed of the order.

    Raises:
        ValueError: If there are too few prompts for one step.
    """

    def __init__(self, dataset: CompletionDataset, prompts_per_step: int, seed: int) -> None:
        check_enough(dataset.num_prompts, prompts_per_step)
        self.dataset, self.seed = dataset, seed
        self.num_used = dataset.num_prompts - dataset.num_prompts % prompts_per_step

    def __len__(self) -> int:
        return self.num_used * self.dataset.num_generations

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.dataset.epoch) % 2**63)
        order = torch.randperm(self.dataset.num_prompts, generator=generator)[: self.num_used].tolist()
        samples = self.dataset.num_generations
        for prompt in order:
            yield from range(prompt * samples, (prompt + 1) * samples)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch."""
        self.dataset.set_epoch(epoch)


def check_enough(num_prompts: int, prompts_per_step: int) -> None:
    """Refuse a data set that does not fill one step.

    Raises:
        ValueError: With both numbers.
    """
    if num_prompts < prompts_per_step:
        raise ValueError(
            f"a step needs {prompts_per_step} prompts, but only {num_prompts} are left after filtering; "
            "lower prompts_per_step or add prompts"
        )


def keep_as_list(items: list[Any]) -> list[Any]:
    """The collator: a micro-batch stays a list of items until its rollout is there."""
    return items
