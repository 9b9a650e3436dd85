"""Where the seconds of a step go (Table 10)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from saki.training.metrics import MetricSums
from saki.training.ranks import Ranks

PARTS = ("sync", "rollout", "score", "facts", "wait", "update")
"""Parts of a step, in the order in which they come; none of them overlaps another."""


class StepClock(TrainerCallback):
    """Splits the wall time of optimizer steps into parts that add up to the whole.

    A step lasts from the request for its rollout until its weights are updated. Each rank adds its own seconds; the
    logged figures are means over ranks, so that ``time/<part>_s`` over :data:`PARTS` and ``time/rest_s`` add up to
    ``time/step_s``. What happens from one step to the next (logging, probe, evaluation, checkpoint) is
    ``time/between_s`` and no part of a step.

    Args:
        sums: Where the figures go.
        ranks: The processes; what they wait for each other is the part ``wait``.
    """

    def __init__(self, sums: MetricSums, ranks: Ranks) -> None:
        self._sums, self._ranks = sums, ranks
        self._seconds: dict[str, float] = {}
        self._begun: float | None = None
        self._ended: float | None = None
        self._update_begun: float | None = None
        self._waited = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._begun, self._waited, self._seconds = time.perf_counter(), self._ranks.waited, {}
        if self._ended is not None:
            self._sums.add("time/between_s", self._begun - self._ended, 1)

    def add(self, part: str, seconds: float) -> None:
        """Charge seconds to a part of the step under way; outside a step they are no part of any."""
        if self._begun is not None:
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Charge a block to a part, without what ranks waited for each other in it."""
        begin, waited = time.perf_counter(), self._ranks.waited
        yield
        self.add(part, time.perf_counter() - begin - (self._ranks.waited - waited))

    def begin_update(self) -> None:
        """The rollout is done, the update begins."""
        self._update_begun = time.perf_counter()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """No step has ended yet in this training."""
        self._begun = self._ended = self._update_begun = None

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The weights are updated."""
        if self._update_begun is not None:
            self.add("update", time.perf_counter() - self._update_begun)
            self._update_begun = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The step ends: its figures are added up."""
        if self._begun is None:
            return
        self._ended = time.perf_counter()
        self.add("wait", self._ranks.waited - self._waited)
        whole = self._ended - self._begun
        self._begun = None
        self._sums.add("time/step_s", whole, 1)
        for part in PARTS:
            self._sums.add(f"time/{part}_s", self._seconds.get(part, 0.0), 1)
        self._sums.add("time/rest_s", whole - sum(self._seconds.values()), 1)
