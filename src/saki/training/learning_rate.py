"""The schedule of the learning rate, tried before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from transformers import SchedulerType, TrainingArguments, get_scheduler

WITHOUT_OPTIONS = (SchedulerType.CONSTANT, SchedulerType.CONSTANT_WITH_WARMUP)
"""Schedules for which the library drops ``lr_scheduler_kwargs`` unseen."""


def check_learning_rate_schedule(args: TrainingArguments) -> None:
    """Build the schedule once, over no model.

    Raises:
        ValueError: If ``lr_scheduler_kwargs`` do not suit ``lr_scheduler_type``.
    """
    kind, options = SchedulerType(args.lr_scheduler_type), args.lr_scheduler_kwargs
    given: Mapping[str, Any] = json.loads(options) if isinstance(options, str) else options or {}
    if given and kind in WITHOUT_OPTIONS:
        raise ValueError(
            f"lr_scheduler_type {kind.value} takes no lr_scheduler_kwargs, got {json.dumps(given)}; leave them out or "
            "set another type"
        )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=args.learning_rate)
    try:
        get_scheduler(kind, optimizer, 0, max(args.max_steps, 1), dict(given))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"lr_scheduler_kwargs {json.dumps(given)} do not suit lr_scheduler_type {kind.value}: {error}"
        ) from error
