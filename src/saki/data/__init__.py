"""Data sets of prompts, rendering them to ids, and collation of rollouts."""

from saki.data.collation import MicroBatch, collate_rollout
from saki.data.loading import DataLoadError, load_prompt_dataset
from saki.data.prompts import PromptError, RenderedPrompts, render_prompts

__all__ = [
    "DataLoadError",
    "MicroBatch",
    "PromptError",
    "RenderedPrompts",
    "collate_rollout",
    "load_prompt_dataset",
    "render_prompts",
]
