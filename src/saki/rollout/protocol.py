"""What every rollout engine offers, whatever runs behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from saki.types import Prompt, RolloutBatch, RolloutRequest

ProgressCallback = Callable[[int, int], None]
"""Called with (rows finished, rows in all) as a rollout goes on."""


@dataclass(frozen=True)
class ScoreResult:
    """One model's view of given completions.

    Attributes:
        logprobs: [B, T] nats, log-prob of each completion token given everything before it; NaN outside the mask.
        mode_ids: [B, T] int64, the model's most likely token at each position; -1 outside the mask.
        mode_logprobs: [B, T] nats, log-prob of that token; NaN outside the mask.
    """

    logprobs: Tensor
    mode_ids: Tensor
    mode_logprobs: Tensor


@dataclass(frozen=True)
class SyncReport:
    """What a weight sync did.

    Attributes:
        version: Version of the weights that now draft.
        checksum: Checksum of the engine's student tensors after the sync (hex).
        probe_change: Largest change in nats of the log-probs of a fixed probe prefix across the sync.
        seconds: Wall seconds.
        num_bytes: Bytes of the weights, in the engine's dtype.
    """

    version: int
    checksum: str
    probe_change: float
    seconds: float
    num_bytes: int = 0


@dataclass
class EngineStats:
    """Counters since the engine was made. Times are wall seconds.

    Attributes:
        committed_tokens: Valid response tokens returned.
        waves: Verification waves run (student-only rollouts count none).
        student_forwards: Forwards of the student, prefill included.
        teacher_q_forwards: Teacher forwards that serve the bridge, prefill included. 0 on the student-only path.
        solved_bridges: Positions whose bridge was solved for; the rest was decided by screening and then discarded.
        prefill_positions: Prompt positions, padding included, that went through the two models.
        teacher_score_forwards: Teacher forwards of :meth:`RolloutEngine.score`.
        empty_residuals: Rejections without positive residual weight, where the proposal was kept.
        halvings: Times that memory ran out and work began again with half the rows at once.
        seconds: Split of the time by phase: prefill, draft, verify, bridge (with the coupling), score, rest.
    """

    committed_tokens: int = 0
    waves: int = 0
    student_forwards: int = 0
    teacher_q_forwards: int = 0
    solved_bridges: int = 0
    prefill_positions: int = 0
    teacher_score_forwards: int = 0
    empty_residuals: int = 0
    halvings: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class RolloutEngine(Protocol):
    """The engine protocol. Tokens in, tokens out: engines know no tokenizer."""

    def generate(
        self, prompts: Sequence[Prompt], request: RolloutRequest, progress: ProgressCallback | None = None
    ) -> RolloutBatch:
        """Roll out every sample of every prompt; rows come prompt-major, in the order of ``prompts``."""
        ...

    def score(self, batch: RolloutBatch, model: Literal["student", "teacher"] = "teacher") -> ScoreResult:
        """Log-probs and modes of the committed tokens under one of the models."""
        ...

    def sync_student(self, weights: Iterable[tuple[str, Tensor]], version: int) -> SyncReport:
        """Replace the student's weights; caches of older versions are dropped."""
        ...

    def student_checksum(self) -> str:
        """Checksum of the student tensors that draft."""
        ...

    def teacher_checksum(self) -> str | None:
        """Checksum of the teacher tensors, or None where there is no teacher."""
        ...

    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        ...

    def close(self) -> None:
        """Release models and caches."""
        ...
