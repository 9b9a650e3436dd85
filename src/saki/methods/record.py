"""What a method is: a behavior policy, a router and one loss per branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch
from torch import Tensor

from saki.objectives import NO_FACTS, Fact, StepFact, TokenFacts, TokenTargets
from saki.types import RolloutBatch
from saki.types.request import BehaviorName

Router = Callable[..., Tensor]
"""[B, T] branch indices from a rollout; a router of a method with ``router_needs`` takes the facts as well."""

LossAndClamp = tuple[Tensor, Tensor | None]
"""Losses [N] in nats, and [N] bool where an advantage was clamped, or None where there is none."""

BranchLoss = Callable[[Tensor, TokenTargets, float | None], LossAndClamp]
"""(policy log-probs of the branch's target [N], targets, advantage clip) -> losses and clamps."""

VocabularyLoss = Callable[[Tensor, Tensor, TokenTargets, float | None], LossAndClamp]
"""(policy log-probs [N, V], teacher log-probs [N, V], targets, advantage clip) -> losses and clamps."""


@dataclass(frozen=True)
class Branch:
    """One way to train a token that needs the policy's log-prob of a single target token.

    Attributes:
        name: Name in metrics (``loss/<name>``).
        target: Picks the token whose policy log-prob the loss needs: [N] ids from the targets.
        loss: Losses from those log-probs.
        needs: Facts that target or loss read.
    """

    name: str
    target: Callable[[TokenTargets], Tensor]
    loss: BranchLoss
    needs: frozenset[Fact] = frozenset()


@dataclass(frozen=True)
class VocabularyBranch:
    """One way to train a token that needs both models' log-probs over the whole vocabulary.

    The trainer hands them over for a chunk of tokens at a time.

    Attributes:
        name: Name in metrics (``loss/<name>``).
        loss: Losses from those log-probs.
        needs: Facts that the loss reads.
    """

    name: str
    loss: VocabularyLoss
    needs: frozenset[Fact] = frozenset()


@dataclass(frozen=True)
class Method:
    """A distillation method. The trainer runs any of them without knowing which.

    Attributes:
        name: Name in the registry and in configs.
        summary: One sentence for ``--help`` and reports.
        behavior: Whose law the rollout samples.
        router: Assigns each token to one of ``branches``.
        branches: Losses; the router's indices point here.
        router_needs: Facts that the router reads, beside the rollout.
        top_k: With behavior ``"skd"``: how many of the teacher's top tokens are accepted.
        options: What the registry built this record with, by name; empty for a method without options.
    """

    name: str
    summary: str
    behavior: BehaviorName
    router: Router
    branches: tuple[Branch | VocabularyBranch, ...]
    router_needs: frozenset[Fact | StepFact] = frozenset()
    top_k: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not self.branches:
            raise ValueError(f"method {self.name!r} has no branches; it needs at least one loss")
        names = [branch.name for branch in self.branches]
        if len(set(names)) != len(names):
            raise ValueError(f"method {self.name!r} repeats a branch name: {names}")
        if (self.behavior == "skd") != (self.top_k is not None):
            raise ValueError(f"method {self.name!r} needs top_k with behavior 'skd' and with no other")

    @property
    def needs(self) -> frozenset[Fact]:
        """Facts of tokens that the router or a branch reads."""
        of_router = cast("frozenset[Fact]", self.router_needs - frozenset(get_args(StepFact)))
        return of_router.union(*(branch.needs for branch in self.branches))

    @property
    def needs_vocabulary(self) -> bool:
        """Whether a branch reads whole next-token laws of policy and teacher."""
        return any(isinstance(branch, VocabularyBranch) for branch in self.branches)

    def route(self, batch: RolloutBatch, facts: TokenFacts = NO_FACTS) -> Tensor:
        """[B, T] int64 branch indices, -1 outside the response mask.

        Raises:
            ValueError: If the router points at a branch that is not there.
        """
        found = self.router(batch, facts) if self.router_needs else self.router(batch)
        routes = found.masked_fill(~batch.response_mask, -1)
        valid = routes[batch.response_mask]
        if valid.numel() and not (int(valid.min()) >= 0 and int(valid.max()) < len(self.branches)):
            raise ValueError(
                f"the router of method {self.name!r} gave branch {int(valid.min())} to {int(valid.max())}, "
                f"expected 0 to {len(self.branches) - 1}"
            )
        return routes

    def target_ids(self, routes: Tensor, targets: TokenTargets) -> Tensor:
        """The token that trains each position: [N] ids, for [N] branch indices; y under a vocabulary branch."""
        ids = targets.completion_ids.clone()
        for index, branch in enumerate(self.branches):
            if isinstance(branch, Branch):
                chosen = routes == index
                ids[chosen] = branch.target(targets)[chosen]
        return ids

    def token_losses(
        self, logprobs: Tensor, routes: Tensor, targets: TokenTargets, advantage_clip: float | None
    ) -> tuple[Tensor, Tensor]:
        """Each token's loss by its branch (Eq. 16 before the sum); 0 under a vocabulary branch.

        Args:
            logprobs: [N] log pi of :meth:`target_ids`, with gradient.
            routes: [N] branch indices.
            targets: What is known of the N tokens.
            advantage_clip: Bound on |A|, nats, or None.

        Returns:
            [N] losses in nats, and [N] bool: True where an advantage was clamped.
        """
        losses = torch.zeros_like(logprobs)
        clamped = torch.zeros_like(routes, dtype=torch.bool)
        for index, branch in enumerate(self.branches):
            if isinstance(branch, Branch):
                chosen = torch.nonzero(routes == index).flatten()
                part, was_clamped = branch.loss(logprobs[chosen], targets.select(chosen), advantage_clip)
                losses = losses.index_put((chosen,), part)
                if was_clamped is not None:
                    clamped[chosen] = was_clamped
        return losses, clamped

    def vocabulary_losses(
        self,
        policy_vocab_logprobs: Tensor,
        teacher_vocab_logprobs: Callable[[Tensor], Tensor],
        routes: Tensor,
        targets: TokenTargets,
        advantage_clip: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Each token's loss by its vocabulary branch; 0 under another branch.

        Args:
            policy_vocab_logprobs: [n, V], with gradient.
            teacher_vocab_logprobs: Gives [m, V] for m of the n tokens, by index; asked once a branch.
            routes: [n] branch indices.
            targets: What is known of the n tokens.
            advantage_clip: Bound on |A|, nats, or None.

        Returns:
            [n] losses in nats, and [n] bool: True where an advantage was clamped.
        """
        losses = policy_vocab_logprobs.new_zeros(routes.shape)
        clamped = torch.zeros_like(routes, dtype=torch.bool)
        for index, branch in enumerate(self.branches):
            chosen = torch.nonzero(routes == index).flatten()
            if isinstance(branch, VocabularyBranch) and chosen.numel():
                part, was_clamped = branch.loss(
                    policy_vocab_logprobs[chosen],
                    teacher_vocab_logprobs(chosen),
                    targets.select(chosen),
                    advantage_clip,
                )
                losses = losses.index_put((chosen,), part)
                if was_clamped is not None:
                    clamped[chosen] = was_clamped
        return losses, clamped
