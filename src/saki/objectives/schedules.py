"""Schedules of the trust-region radius. Steps are 1-based optimizer steps."""

from __future__ import annotations

import math

SCHEDULES = ("linear", "constant", "cosine")


def linear_anneal(initial: float, step: int, num_steps: int, floor: float = 0.0) -> float:
    """floor + (initial - floor) * max(0, 1 - (step - 1) / num_steps); with floor 0 the paper's schedule (4.1).

    With initial 0.02 and 50 steps: 0.02 at step 1, 0.01 at step 26, 0.0004 at step 50, exactly 0 from step 51.

    Args:
        initial: Radius at step 1, nats.
        step: Optimizer step, from 1.
        num_steps: Steps over which the radius falls to the floor, at least 1.
        floor: Radius from step num_steps + 1 on, nats, in [0, initial].

    Raises:
        ValueError: If a value is out of range.
    """
    _check(initial, step, num_steps, floor)
    return floor + (initial - floor) * max(0, num_steps - (step - 1)) / num_steps


def cosine_anneal(initial: float, step: int, num_steps: int, floor: float = 0.0) -> float:
    """floor + (initial - floor) * (1 + cos(pi min(1, (step - 1) / num_steps))) / 2: slow at both ends.

    Args:
        initial: Radius at step 1, nats.
        step: Optimizer step, from 1.
        num_steps: Steps over which the radius falls to the floor, at least 1.
        floor: Radius from step num_steps + 1 on (exactly), nats, in [0, initial].

    Raises:
        ValueError: If a value is out of range.
    """
    _check(initial, step, num_steps, floor)
    if step > num_steps:
        return floor
    return floor + (initial - floor) * (1 + math.cos(math.pi * (step - 1) / num_steps)) / 2


def constant(initial: float, step: int) -> float:
    """The same radius at every step.

    Raises:
        ValueError: If a value is out of range.
    """
    _check(initial, step)
    return initial


def radius_schedule(name: str, initial: float, step: int, num_steps: int, floor: float = 0.0) -> float:
    """The radius at a step under a schedule by name, one of :data:`SCHEDULES`.

    Raises:
        ValueError: If the name is unknown, a value is out of range, or a constant radius is given a floor.
    """
    if name == "constant":
        if floor:
            raise ValueError(f"a constant radius has no radius_floor, got {floor}; leave it at 0")
        return constant(initial, step)
    if name == "linear":
        return linear_anneal(initial, step, num_steps, floor)
    if name == "cosine":
        return cosine_anneal(initial, step, num_steps, floor)
    raise ValueError(f"radius_schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")


def _check(initial: float, step: int, num_steps: int = 1, floor: float = 0.0) -> None:
    if initial < 0:
        raise ValueError(f"trust-region radius must be >= 0, got {initial}")
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    if num_steps < 1:
        raise ValueError(f"radius anneal steps must be at least 1, got {num_steps}")
    if not 0 <= floor <= initial:
        raise ValueError(f"radius_floor must lie between 0 and the radius of step 1 ({initial}), got {floor}")
