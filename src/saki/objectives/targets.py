"""What losses and routers may know of tokens beside the policy that trains."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from torch import Tensor

Fact = Literal["reference_logprobs", "teacher_sample_ids", "teacher_entropy"]
"""Facts that cost a pass of a model over the rollout; a method names those it needs."""

StepFact = Literal["step_entropies", "step_logprobs"]
"""What a router may need to know of all tokens of the step."""


@dataclass(frozen=True)
class TokenFacts:
    """Facts of a rollout that its record does not hold, on the host; None where no method asked.

    Attributes:
        reference_logprobs: [B, T] nats, log-prob of y under the initial student; NaN outside the response.
        teacher_sample_ids: [B, T] int64, a draw from T at each correction; -1 elsewhere.
        teacher_entropy: [B, T] nats, H(T); NaN outside the response.
        step_entropies: [M] nats, H(T) of every valid position of the whole step, on whatever rank it lies; None where
            this rollout is the whole step.
        step_logprobs: [M] nats, draft-time log p(y), likewise.
    """

    reference_logprobs: Tensor | None = None
    teacher_sample_ids: Tensor | None = None
    teacher_entropy: Tensor | None = None
    step_entropies: Tensor | None = None
    step_logprobs: Tensor | None = None

    def known(self) -> dict[str, Tensor]:
        """The facts of tokens, [B, T], that are there, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if not field.name.startswith("step_")}
        return {name: value for name, value in values.items() if value is not None}


NO_FACTS = TokenFacts()


@dataclass(frozen=True)
class TokenTargets:
    """What the losses know of N valid tokens beside the policy's gradient.

    Attributes:
        completion_ids: [N] int64, committed tokens y.
        teacher_mode_ids: [N] int64, argmax of T.
        teacher_logprobs: [N] nats, log T(y).
        student_logprobs: [N] nats, draft-time log p(y).
        policy_logprobs: [N] nats, the trainer's own log p(y), detached; None before the policy has run.
        reference_logprobs: [N] nats, see :class:`TokenFacts`.
        teacher_sample_ids: [N] int64, see :class:`TokenFacts`.
        teacher_entropy: [N] nats, see :class:`TokenFacts`.
        proposal_ids: [N] int64, the student's proposals z; y where nothing was corrected.
        proposal_teacher_logprobs: [N] nats, log T(z).
    """

    completion_ids: Tensor
    teacher_mode_ids: Tensor
    teacher_logprobs: Tensor
    student_logprobs: Tensor
    policy_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    teacher_sample_ids: Tensor | None = None
    teacher_entropy: Tensor | None = None
    proposal_ids: Tensor | None = None
    proposal_teacher_logprobs: Tensor | None = None

    def select(self, index: Tensor | slice) -> TokenTargets:
        """The targets of some tokens."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[index] for name, value in values.items() if value is not None})

    def with_policy(self, policy_logprobs: Tensor) -> TokenTargets:
        """The targets with the trainer's own log p(y), which must be detached."""
        return replace(self, policy_logprobs=policy_logprobs)
