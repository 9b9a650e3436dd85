"""Seconds of optimizer steps by phase, as trainers of any kind charge them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor
from transformers import TrainerCallback

from saki.rollout import EngineStats, ResidentEngine, ScoreResult, SyncReport
from saki.rollout.protocol import ProgressCallback
from saki.types import Prompt, RolloutBatch, RolloutRequest


@dataclass
class StepTimes:
    """Seconds of each optimizer step, by phase.

    Attributes:
        steps: One dict a step: ``step`` and the phases that were charged.
        prompt_tokens: Prompt tokens that completions were made for, over all steps.
    """

    steps: list[dict[str, float]] = field(default_factory=list)
    prompt_tokens: int = 0
    _open: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge what runs inside."""
        begin = time.perf_counter()
        yield
        self.charge(name, time.perf_counter() - begin)

    def charge(self, name: str, seconds: float) -> None:
        """Add seconds to a phase of the step under way."""
        self._open[name] = self._open.get(name, 0.0) + seconds

    def begin(self) -> None:
        """Training begins."""
        self._last, self._open = time.perf_counter(), {}

    def end_step(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        self.steps.append({"step": now - self._last, **self._open})
        self._last, self._open = now, {}


class StepTimesCallback(TrainerCallback):
    """Tells :class:`StepTimes` of steps."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """The first step begins."""
        self._times.begin()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """A step has ended."""
        self._times.end_step()


class TimedEngine:
    """An engine of a trainer, whose generation, scoring and weight sync are charged; lengths are checked.

    Args:
        engine: The engine.
        times: Where to.
        length: Forced completion length (tokens).
    """

    def __init__(self, engine: ResidentEngine, times: StepTimes, length: int) -> None:
        self._engine, self._times, self._length = engine, times, length

    def generate(
        self, prompts: Sequence[Prompt], request: RolloutRequest, progress: ProgressCallback | None = None
    ) -> RolloutBatch:
        """See :meth:`RolloutEngine.generate`."""
        before = self._engine.stats().seconds.get("score", 0.0)
        begin = time.perf_counter()
        batch = self._engine.generate(prompts, request, progress)
        seconds = time.perf_counter() - begin
        scoring = self._engine.stats().seconds.get("score", 0.0) - before
        self._times.charge("generation", seconds - scoring)
        self._times.charge("scoring", scoring)
        self._times.prompt_tokens += int(batch.prompt_mask.sum())
        check_lengths("saki", batch.lengths.tolist(), self._length)
        return batch

    def score(self, batch: RolloutBatch, model: Literal["student", "teacher"] = "teacher") -> ScoreResult:
        """See :meth:`RolloutEngine.score`."""
        with self._times.phase("scoring"):
            return self._engine.score(batch, model)

    def sync_student(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """See :meth:`RolloutEngine.sync_student`."""
        with self._times.phase("sync"):
            return self._engine.sync_student(weights, version)

    def student_checksum(self) -> str:
        """See :meth:`RolloutEngine.student_checksum`."""
        return self._engine.student_checksum()

    def teacher_checksum(self) -> str | None:
        """See :meth:`RolloutEngine.teacher_checksum`."""
        return self._engine.teacher_checksum()

    def stats(self) -> EngineStats:
        """See :meth:`RolloutEngine.stats`."""
        return self._engine.stats()

    def close(self) -> None:
        """See :meth:`RolloutEngine.close`."""
        self._engine.close()


def check_lengths(who: str, lengths: Sequence[int], length: int) -> None:
    """Refuse completions that are not as long as they were forced to be.

    Raises:
        RuntimeError: If one is not.
    """
    if any(each != length for each in lengths):
        raise RuntimeError(f"{who} gave completions of {min(lengths)} to {max(lengths)} tokens, forced were {length}")
