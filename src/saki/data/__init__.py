"""Data sets of prompts, rendering them to ids, and collation of rollouts."""

from saki.data.collation import MicroBatch, collate_rollout
from saki.data.loading import DataLoadError, load_prompt_dataset
from saki.data.preparation import PreparedPrompts, prepare_prompts, write_prompts
from saki.data.prompts import PromptError, RenderedPrompts, render_prompts

__all__ = [
    "DataLoadError",
    "MicroBatch",
    "PreparedPrompts",
    "PromptError",
    "RenderedPrompts",
    "collate_rollout",
    "load_prompt_dataset",
    "prepare_prompts",
    "render_prompts",
    "write_prompts",
]
