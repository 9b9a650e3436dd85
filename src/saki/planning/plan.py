"""The plan: memory and time of a request, and what to change where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from saki.planning.memory import DeviceMemory, device_memory
from saki.planning.request import PlanRequest
from saki.planning.speed import StepTime, step_time

LEAST_CHUNK, LEAST_COMPLETION = 64, 256

Tries = Callable[[PlanRequest], Iterator[PlanRequest]]


@dataclass(frozen=True)
class Plan:
    """What a request comes to.

    Attributes:
        request: The request.
        memory: Each kind of device.
        time: One step.
        changes: Options with values that make it fit (or come nearest), the least harmful first; empty where it fits.
        remedied: Whether it fits with the changes.
    """

    request: PlanRequest
    memory: tuple[DeviceMemory, ...]
    time: StepTime
    changes: dict[str, Any]
    remedied: bool

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return all(device.fits for device in self.memory)

    def to_json(self) -> dict[str, Any]:
        """Numbers alone, bytes and seconds."""
        time, request = self.time, self.request
        return {
            "fits": self.fits,
            "changes": self.changes,
            "fits_with_changes": self.remedied,
            "devices": {
                device.role: {
                    "peak_bytes": device.peak,
                    "capacity_bytes": device.capacity,
                    "items": [asdict(item) for item in device.items],
                }
                for device in self.memory
            },
            "kv_bytes_per_token": {
                "student": request.student.kv_bytes_per_token(request.rollout_dtype),
                "teacher": request.teacher.kv_bytes_per_token(request.teacher_dtype),
            },
            "correction_rate": request.rate,
            "correction_bound": request.bound,
            "tokens_per_wave": time.tokens_per_wave,
            "ratio_to_student_only": time.ratio,
            "tokens_per_s": time.tokens / time.exact_q_s,
            "student_only_tokens_per_s": time.tokens / time.student_only_s,
            "seconds": {
                **time.split,
                "rollout": time.exact_q_s,
                "student_only": time.student_only_s,
                "update": time.update_s,
                "sync": time.sync_s,
                "step": time.step_s,
            },
        }


def make_plan(request: PlanRequest) -> Plan:
    """Predict memory and time, and look for the least harmful changes where a device is too small."""
    changes, remedied = ({}, True) if _excess(request) <= 0 else _remedies(request)
    return Plan(request, device_memory(request), step_time(request), changes, remedied)


def _excess(request: PlanRequest) -> float:
    """Bytes above capacity, summed over phases and devices: a change that helps the smaller peak counts as well."""
    return sum(
        max(0.0, device.of("resident") + device.of(phase) - device.capacity)
        for device in device_memory(request)
        if device.capacity is not None
        for phase in ("rollout", "update")
    )


def _halvings(name: str, least: int, when: Callable[[PlanRequest], bool]) -> Tries:
    def tries(request: PlanRequest) -> Iterator[PlanRequest]:
        value = min(getattr(request, name), request.slots) if name == "rollout_batch_rows" else getattr(request, name)
        while value > least and when(request):
            value = max(least, value // 2)
            yield replace(request, **{name: value})

    return tries


def _setting(name: str, value: Any, when: Callable[[PlanRequest], bool]) -> Tries:
    def tries(request: PlanRequest) -> Iterator[PlanRequest]:
        if when(request) and getattr(request, name) != value:
            yield replace(request, **{name: value})

    return tries


def _split(request: PlanRequest) -> Iterator[PlanRequest]:
    if request.train and request.layout == "colocated":
        yield replace(request, layout="split", num_devices=max(2, request.num_devices))


def _shorter(request: PlanRequest) -> Iterator[PlanRequest]:
    value, mean = request.max_completion_length, request.mean_completion_length
    while value > LEAST_COMPLETION:
        value = max(LEAST_COMPLETION, value // 2)
        yield replace(
            request, max_completion_length=value, mean_completion_length=None if mean is None else min(mean, value)
        )


REMEDIES: tuple[tuple[str, Tries], ...] = (
    ("rollout_batch_rows", _halvings("rollout_batch_rows", 1, lambda r: True)),
    ("loss_chunk_tokens", _halvings("loss_chunk_tokens", LEAST_CHUNK, lambda r: r.train)),
    ("per_device_train_batch_size", _halvings("per_device_train_batch_size", 1, lambda r: r.train)),
    ("gradient_checkpointing", _setting("gradient_checkpointing", True, lambda r: r.train)),
    ("layout", _split),
    ("teacher_dtype", _setting("teacher_dtype", "bfloat16", lambda r: r.teacher_dtype in ("float32", "float64"))),
    ("max_completion_length", _shorter),
)
"""In order of harm: the first five cost time or devices, the teacher's dtype changes q, the last cuts the data."""


def _remedies(request: PlanRequest) -> tuple[dict[str, Any], bool]:
    """Changes that are kept because they help; then those are dropped again without which it still fits."""
    best = request
    kept: list[str] = []
    for name, tries in REMEDIES:
        chosen = best
        for candidate in tries(best):
            if _excess(candidate) < _excess(chosen):
                chosen = candidate
            if _excess(chosen) <= 0:
                break
        if chosen is not best:
            best = chosen
            kept.append(name)
        if _excess(best) <= 0:
            break
    fits = _excess(best) <= 0
    for name in list(kept) if fits else []:
        if name in ("layout", "max_completion_length"):
            continue  # tried last, so it was needed
        without = replace(best, **{name: getattr(request, name)})
        if _excess(without) <= 0:
            best = without
            kept.remove(name)
    changes = {name: getattr(best, name) for name in kept}
    if "layout" in changes and best.num_devices != request.num_devices:
        changes["num_devices"] = best.num_devices
    return changes, fits
