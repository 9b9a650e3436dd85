"""A method's losses on a micro-batch: hands each branch what it needs, and no more."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from saki.methods import Method
from saki.models import PairSpec
from saki.objectives import TokenFacts, TokenTargets
from saki.rollout import HFDecoder
from saki.training.config import SakiConfig
from saki.training.engines import frozen_copy
from saki.training.facts import StepFacts
from saki.training.metrics import MetricSums, record_update
from saki.training.policy import PolicyHead
from saki.training.teacher import VocabularyTeacher
from saki.types import RolloutBatch


class MethodLoss:
    """Computes the token losses of a method.

    Args:
        method: The method.
        policy: The trainable policy.
        teacher: The teacher's laws, for a method that needs them.
        advantage_clip: Bound on advantages, or None.
        sums: Where metrics go.

    Attributes:
        teacher: As given; it scores student rollouts, too.
    """

    def __init__(
        self,
        method: Method,
        policy: PolicyHead,
        teacher: VocabularyTeacher | None,
        advantage_clip: float | None,
        sums: MetricSums,
    ) -> None:
        self._method, self._policy, self.teacher = method, policy, teacher
        self._clip, self._sums = advantage_clip, sums
        self._branch_names = tuple(branch.name for branch in method.branches)

    def step_columns(self, batch: RolloutBatch, facts: TokenFacts) -> dict[str, Tensor]:
        """What a step's micro-batches carry beside the rollout: [B, T] routes and facts."""
        places = self.teacher.places(batch) if self.teacher is not None else {}
        return {"routes": self._method.route(batch, facts), **facts.known(), **places}

    def token_losses(
        self, model: nn.Module, unwrapped: nn.Module, inputs: dict[str, Tensor], autocast: AbstractContextManager[Any]
    ) -> tuple[Tensor, Tensor]:
        """Losses of the N valid tokens of a micro-batch (Eq. 16 before the sum), and its metrics.

        Args:
            model: The model as the trainer wraps it.
            unwrapped: The same without the wrapper.
            inputs: The micro-batch, with the columns of :meth:`step_columns`.
            autocast: Context of the policy's forward.

        Returns:
            [N] losses in nats, and [N, 2] log pi of the committed and of the training token, with gradient.
        """
        mask = inputs["response_mask"]
        routes = inputs["routes"][mask]
        targets = TokenTargets(
            completion_ids=inputs["completion_ids"][mask],
            teacher_mode_ids=inputs["teacher_mode_ids"][mask],
            teacher_logprobs=inputs["teacher_logprobs"][mask],
            student_logprobs=inputs["student_logprobs"][mask],
            proposal_ids=inputs["proposal_ids"][mask],
            proposal_teacher_logprobs=inputs["proposal_teacher_logprobs"][mask],
            **{name: inputs[name][mask] for name in self._method.needs},
        )
        ids = torch.stack([targets.completion_ids, self._method.target_ids(routes, targets)], dim=1)
        features = self.teacher.features(inputs) if self.teacher is not None else None

        def read(logits: Tensor, which: slice) -> Tensor:
            chosen = logits.gather(-1, ids[which]) - logits.logsumexp(dim=-1, keepdim=True)
            if features is None:
                return chosen
            losses, clamped = self._vocabulary_losses(logits, features[which], routes[which], targets.select(which))
            return torch.cat([chosen, torch.stack([losses, clamped.to(losses.dtype)], dim=1)], dim=1)

        with autocast:
            values = self._policy.read(model, unwrapped, inputs, read)
        logprobs = values[:, :2]
        targets = targets.with_policy(logprobs[:, 0].detach())
        losses, clamped = self._method.token_losses(logprobs[:, 1], routes, targets, self._clip)
        if features is not None:
            losses, clamped = losses + values[:, 2], clamped | (values[:, 3] > 0)
        gap = (logprobs[:, 0].detach() - targets.student_logprobs).abs()
        record_update(self._sums, self._branch_names, routes, losses.detach(), clamped, gap)
        return losses, logprobs

    def _vocabulary_losses(
        self, logits: Tensor, features: Tensor, routes: Tensor, targets: TokenTargets
    ) -> tuple[Tensor, Tensor]:
        teacher = self.teacher
        assert teacher is not None
        return self._method.vocabulary_losses(
            torch.log_softmax(logits, dim=-1),
            lambda chosen: teacher.logprobs(features[chosen], logits.dtype),
            routes,
            targets,
            self._clip,
        )


def method_parts(
    method: Method,
    student: nn.Module,
    teacher_model: nn.Module,
    spec: PairSpec,
    args: SakiConfig,
    rollout_dtype: torch.dtype,
    sums: MetricSums,
) -> tuple[StepFacts, MethodLoss]:
    """Facts and losses of a method, with frozen models only where it asks for them.

    Args:
        method: The method.
        student: The trainable model, still with its initial weights: a reference is copied from it.
        teacher_model: The teacher. The engine's own module is used again, not a second copy of its weights.
        spec: Shared vocabulary.
        args: The configuration.
        rollout_dtype: Dtype of a reference.
        sums: Where metrics go.
    """
    teacher = reference = None
    if method.needs_vocabulary or method.needs & {"teacher_sample_ids", "teacher_entropy"}:
        teacher = HFDecoder(teacher_model.to(args.device), spec.vocab_size)
    if "reference_logprobs" in method.needs:
        reference = frozen_copy(student, spec, dtype=rollout_dtype, device=args.device)
    policy = PolicyHead(student, spec.vocab_size, args.loss_chunk_tokens)
    laws = None
    if teacher is not None and method.needs_vocabulary:
        laws = VocabularyTeacher(teacher, args.per_device_train_batch_size)
    facts = StepFacts(method, teacher, reference, args.rollout_batch_rows, laws)
    return facts, MethodLoss(method, policy, laws, args.advantage_clip, sums)
