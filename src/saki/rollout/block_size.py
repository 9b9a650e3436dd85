"""How many tokens to draft before the teacher looks: K from the acceptance seen so far."""

from __future__ import annotations

from collections.abc import Sequence

BALANCE_TOKENS = {"cpu": 8, "cuda": 256}
"""Tokens in a forward at which arithmetic costs as much as reading the weights; a round figure for a kind of device."""

PRIOR_ACCEPTED, PRIOR_REJECTED = 36.0, 4.0
"""Imagined proposals before the first wave: an acceptance of 0.9."""

MEMORY = 0.98
"""Weight that the past keeps from wave to wave: acceptance drifts along a text, about fifty waves are remembered."""


class BlockSizer:
    """Picks K for each wave so that the expected committed tokens per unit of time are most.

    With an acceptance a, a block of K commits (1 - a^K) / (1 - a) tokens on average. A forward of M tokens is taken to
    cost w (1 + M / B), with w the model's weights and B the device's :data:`BALANCE_TOKENS`; a wave of R rows costs K
    student forwards of R tokens and one teacher forward of R K. No clock is read: K depends on the rollout alone, so
    the same request goes through the same forwards again.

    Args:
        most: Largest K.
        teacher_weight: Teacher's parameters over the student's.
        device_type: ``cpu`` or ``cuda``; others count as ``cuda``.
    """

    def __init__(self, most: int, teacher_weight: float, device_type: str) -> None:
        self._most, self._teacher_weight = most, teacher_weight
        self._balance = BALANCE_TOKENS.get(device_type, BALANCE_TOKENS["cuda"])
        self._accepted, self._rejected = PRIOR_ACCEPTED, PRIOR_REJECTED

    @property
    def acceptance(self) -> float:
        """Estimated probability that a proposal is kept."""
        return self._accepted / (self._accepted + self._rejected)

    def next(self, num_rows: int) -> int:
        """K of the next wave of so many rows."""
        rates = [self._rate(size, num_rows) for size in range(1, self._most + 1)]
        return 1 + rates.index(max(rates))

    def observe(self, committed: Sequence[int], width: int) -> None:
        """Learn from a wave.

        Args:
            committed: Tokens that each row committed, rows that ended left out. Fewer than ``width`` end in a
                correction; with all of them the last may be one too, which is not told here and counts as kept.
            width: K of the wave.
        """
        rejected = sum(count < width for count in committed)
        self._accepted = MEMORY * self._accepted + sum(committed) - rejected
        self._rejected = MEMORY * self._rejected + rejected

    def _rate(self, size: int, num_rows: int) -> float:
        acceptance = min(self.acceptance, 1 - 1e-9)
        expected = (1 - acceptance**size) / (1 - acceptance)
        draft = size * (1 + num_rows / self._balance)
        verify = self._teacher_weight * (1 + num_rows * size / self._balance)
        return expected / (draft + verify)
