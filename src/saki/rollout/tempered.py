"""A decoder at another temperature, for evaluation alone: training and certificates know temperature 1 only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from saki.rollout.decoder import HFDecoder


class TemperedDecoder(HFDecoder):
    """A decoder whose logits are divided by a temperature; at 0 the most likely token has all the probability.

    Args:
        model: The model; see :class:`saki.rollout.HFDecoder`.
        vocab_size: Real ids.
        temperature: At least 0.

    Raises:
        ValueError: If the temperature is negative.
    """

    def __init__(self, model: nn.Module, vocab_size: int, temperature: float) -> None:
        if temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {temperature}")
        super().__init__(model, vocab_size)
        self.temperature = temperature

    @torch.no_grad()
    def forward(self, token_ids: Tensor, starts: Tensor, cache: Any, visible: int, num_logits: int) -> Tensor:
        """See :meth:`Decoder.forward`. A row with a NaN stays one, so that it fails by name."""
        logits = super().forward(token_ids, starts, cache, visible, num_logits)
        if self.temperature > 0:
            return logits.float() / self.temperature
        certain = torch.full_like(logits, float("-inf")).scatter(-1, logits.argmax(dim=-1, keepdim=True), 0.0)
        return torch.where(logits.isnan().any(dim=-1, keepdim=True), logits, certain)
