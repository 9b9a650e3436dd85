"""What a method is: a behavior policy, a router and one loss per branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
        if valid.numel() and not (0 <= int(valid.min()) and int(valid.max()) < len(self.branches)):
            raise ValueError(
                f"the router of method {self.name!r} gave branch {int(valid.min())} to {int(valid.max())}, "
                f"expected 0 to {len(self.branches) - 1}"
            )
        return routes
