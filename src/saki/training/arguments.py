"""What a trainer is given, looked at before anything is loaded or written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from saki.methods import Method
from saki.models import check_architecture, compare_tokenizers, load_causal_lm, load_teacher, load_tokenizer
from saki.rollout import RolloutEngine
from saki.training.config import SakiConfig
from saki.training.policy import base_model
from saki.types import Prompt

logger = logging.getLogger(__name__)


def check_arguments(model: Any, teacher_model: Any, args: Any, processing_class: Any, method: Any, engine: Any) -> None:
    """Refuse arguments of the wrong type.

    Raises:
        ValueError: One sentence.
    """
    if not isinstance(args, SakiConfig):
        raise ValueError(f"args is a {type(args).__name__}, expected a saki.training.SakiConfig")
    check_device(args)
    for name, value in (("model", model), ("teacher_model", teacher_model)):
        if not isinstance(value, (str, nn.Module)):
            raise ValueError(
                f"{name} is a {type(value).__name__}, expected a causal language model, or a folder or hub name"
            )
    if processing_class is None and not isinstance(model, str):
        raise ValueError("processing_class is needed when model is not a name; pass the student's tokenizer")
    if processing_class is not None and not isinstance(processing_class, PreTrainedTokenizerBase):
        raise ValueError(f"processing_class is a {type(processing_class).__name__}, expected the student's tokenizer")
    if method is not None and not isinstance(method, Method):
        raise ValueError(f"method is a {type(method).__name__}, expected a saki.methods.Method or None")
    if engine is not None and not isinstance(engine, RolloutEngine):
        raise ValueError(f"engine is a {type(engine).__name__}, expected a saki.rollout.RolloutEngine or None")


def check_device(args: SakiConfig) -> None:
    """Refuse devices and modes in which saki cannot draw.

    Raises:
        ValueError: One sentence.
    """
    if args.device.type == "mps":
        raise ValueError("Apple's GPU (mps) has no float64, in which saki draws and solves; set use_cpu")
    if args.full_determinism and args.device.type == "cuda":
        raise ValueError(
            "full_determinism forbids sums over the vocabulary on a GPU that every draw needs; leave it away: the "
            "random numbers of a rollout are keyed by seed, prompt and position in any case"
        )


def note_narrow_weights(student: nn.Module) -> None:
    """Warn if the optimizer would step on 16-bit weights, which swallow small updates without a sign."""
    narrow = {str(value.dtype) for value in student.parameters() if value.requires_grad and value.dtype.itemsize < 4}
    if narrow:
        logger.warning(
            "the student's weights are %s: at small learning rates most updates round to nothing; load it with "
            "dtype=torch.float32 (with bf16=True products are still bfloat16), or train an adapter",
            " and ".join(sorted(narrow)).replace("torch.", ""),
        )


def load_named(
    model: Any, teacher_model: Any, tokenizer: Any, teacher_tokenizer: Any, runs_on: torch.device
) -> tuple[Any, Any, PreTrainedTokenizerBase, PreTrainedTokenizerBase | None]:
    """Load what is given by name: tokenizers first, so that a pair that does not fit costs nothing.

    Args:
        model: The student, or its name.
        teacher_model: The teacher, its name, or None.
        tokenizer: Of the student; needed unless the student is named.
        teacher_tokenizer: Of the teacher, or None.
        runs_on: Where the teacher will run.

    Returns:
        Student (float32 where it was a name), teacher, and their tokenizers.

    Raises:
        ValueError: If something cannot be loaded or the tokenizers differ.
    """
    if isinstance(model, str):
        tokenizer = tokenizer or load_tokenizer(model)
    if isinstance(teacher_model, str):
        teacher_tokenizer = teacher_tokenizer or load_tokenizer(teacher_model)
    if teacher_tokenizer is not None:
        compare_tokenizers(tokenizer, teacher_tokenizer)
    if isinstance(model, str):
        model = load_causal_lm(model, dtype=torch.float32)
    if isinstance(teacher_model, str):
        teacher_model = load_teacher(teacher_model, runs_on=runs_on)
    return model, teacher_model, tokenizer, teacher_tokenizer


def check_positions(prompts: Sequence[Prompt], args: SakiConfig, student: Any, teacher: Any) -> None:
    """Refuse completions that can outgrow the models' positions.

    Args:
        prompts: Every prompt that will be rolled out.
        args: The configuration.
        student: The student, plain or PEFT.
        teacher: The teacher, or None where an engine of the user's own holds it.

    Raises:
        ValueError: One sentence with both numbers, or naming what the engine does not run.
    """
    longest = max(len(prompt.token_ids) for prompt in prompts)
    for side, model in (("student", base_model(student)), ("teacher", teacher)):
        limit = None if model is None else check_architecture(model.config, type(model)).max_positions
        if limit is not None and longest + args.max_completion_length > limit:
            raise ValueError(
                f"the longest prompt has {longest} tokens and max_completion_length is {args.max_completion_length}, "
                f"but the {side} takes {limit} tokens in all; lower max_completion_length or max_prompt_length"
            )
