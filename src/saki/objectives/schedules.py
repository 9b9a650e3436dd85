"""Schedules of the trust-region radius. Steps are 1-based optimizer steps."""

from __future__ import annotations


def linear_anneal(initial: float, step: int, num_steps: int) -> float:
    """initial * max(0, 1 - (step - 1) / num_steps): the paper's schedule (4.1, SPEC 5).

    With initial 0.02 and 50 steps: 0.02 at step 1, 0.01 at step 26, 0.0004 at step 50, exactly 0 from step 51.

    Args:
        initial: Radius at step 1, nats.
        step: Optimizer step, from 1.
        num_steps: Steps over which the radius falls to 0, at least 1.

    Raises:
        ValueError: If a value is out of range.
    """
    _check(initial, step)
    if num_steps < 1:
        raise ValueError(f"radius anneal steps must be at least 1, got {num_steps}")
    return initial * max(0, num_steps - (step - 1)) / num_steps


def constant(initial: float, step: int) -> float:
    """The same radius at every step.

    Raises:
        ValueError: If a value is out of range.
    """
    _check(initial, step)
    return initial


def _check(initial: float, step: int) -> None:
    if initial < 0:
        raise ValueError(f"trust-region radius must be >= 0, got {initial}")
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
