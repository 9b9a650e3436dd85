"""What a method is: a behavior policy, a router and one loss per branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saki.objectives import TokenTargets
from saki.types import RolloutBatch
from saki.types.request import BehaviorName

Router = Callable[[RolloutBatch], Tensor]
"""[B, T] branch indices from a rollout."""

BranchLoss = Callable[[Tensor, TokenTargets, float | None], tuple[Tensor, Tensor | None]]
"""(policy log-probs of the branch's target [N], targets, advantage clip) -> losses [N], clamped [N] bool or None."""


@dataclass(frozen=True)
class Branch:
    """One way to train a token.

    Attributes:
        name: Name in metrics (``loss/<name>``).
        target: Picks the token whose policy log-prob the loss needs: [N] ids from the targets.
        loss: Losses from those log-probs.
    """

    name: str
    target: Callable[[TokenTargets], Tensor]
    loss: BranchLoss


@dataclass(frozen=True)
class Method:
    """A distillation method. The trainer runs any of them without knowing which.

    Attributes:
        name: Name in the registry and in configs.
        summary: One sentence for ``--help`` and reports.
        behavior: Whose law the rollout samples.
        router: Assigns each token to one of ``branches``.
        branches: Losses; the router's indices point here.
    """

    name: str
    summary: str
    behavior: BehaviorName
    router: Router
    branches: tuple[Branch, ...]

    def __post_init__(self) -> None:
        if not self.branches:
            raise ValueError(f"method {self.name!r} has no branches; it needs at least one loss")
        names = [branch.name for branch in self.branches]
        if len(set(names)) != len(names):
            raise ValueError(f"method {self.name!r} repeats a branch name: {names}")

    def route(self, batch: RolloutBatch) -> Tensor:
        """[B, T] int64 branch indices, -1 outside the response mask.

        Raises:
            ValueError: If the router points at a branch that is not there.
        """
        routes = self.router(batch).masked_fill(~batch.response_mask, -1)
        valid = routes[batch.response_mask]
        if valid.numel() and not (int(valid.min()) >= 0 and int(valid.max()) < len(self.branches)):
            raise ValueError(
                f"the router of method {self.name!r} gave branch {int(valid.min())} to {int(valid.max())}, "
                f"expected 0 to {len(self.branches) - 1}"
            )
        return routes

    def target_ids(self, routes: Tensor, targets: TokenTargets) -> Tensor:
        """The token that trains each position: [N] ids, for [N] branch indices."""
        ids = targets.completion_ids.clone()
        for index, branch in enumerate(self.branches):
            chosen = routes == index
            ids[chosen] = branch.target(targets)[chosen]
        return ids

    def token_losses(
        self, logprobs: Tensor, routes: Tensor, targets: TokenTargets, advantage_clip: float | None
    ) -> tuple[Tensor, Tensor]:
        """Each token's loss by its branch (Eq. 16 before the sum).

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
            chosen = torch.nonzero(routes == index).flatten()
            part, was_clamped = branch.loss(logprobs[chosen], targets.select(chosen), advantage_clip)
            losses = losses.index_put((chosen,), part)
            if was_clamped is not None:
                clamped[chosen] = was_clamped
        return losses, clamped
