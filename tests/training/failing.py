"""A method that fails on the second rank only, where the others are about to wait for it."""

from __future__ import annotations

import os

from torch import Tensor

from saki.methods import REVERSE_KL, Method
from saki.objectives import route_to_first
from saki.types import RolloutBatch


def _route(batch: RolloutBatch) -> Tensor:
    if os.environ.get("RANK") == "1":
        raise RuntimeError("this rank is lost")
    return route_to_first(batch)


METHOD = Method("failing", "Fails on rank 1.", "student", _route, (REVERSE_KL,))
