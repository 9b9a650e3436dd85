"""The teacher's next-token laws at a micro-batch's response positions, a chunk of tokens at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from saki.functional import normalized_log_probs
from saki.rollout import HFDecoder


class VocabularyTeacher:
    """Gives whole teacher laws to the losses that need them.

    The sequences run through the teacher once a micro-batch; what is kept are the hidden states of the response
    positions, and logits exist only for the tokens asked for.

    Args:
        decoder: The teacher. Its module may be the one that an engine runs: nothing of it is changed.
    """

    def __init__(self, decoder: HFDecoder) -> None:
        self._decoder = decoder

    @torch.no_grad()
    def features(self, inputs: dict[str, Tensor]) -> Tensor:
        """Features [N, hidden] of the N valid response positions, in row-major order.

        Args:
            inputs: ``input_ids`` and ``attention_mask`` [B, L], ``response_mask`` [B, T]; prompts padded on the left.
        """
        mask, ids = inputs["response_mask"], inputs["input_ids"]
        length, width = ids.shape[1], mask.shape[1]
        if not bool(mask.any()):
            return self._decoder.features(ids[:1, :1])[:, :0].flatten(0, 1)
        # The decoder counts positions from the row's first slot, so rows move to the left by their padding.
        padding = (length - width) - inputs["attention_mask"][:, : length - width].sum(dim=1, keepdim=True)
        shifted = (torch.arange(length, device=ids.device) + padding).clamp(max=length - 1)
        with torch.autocast(ids.device.type, enabled=False):
            features = self._decoder.features(ids.gather(1, shifted))
        rows, positions = torch.nonzero(mask, as_tuple=True)
        return features[rows, positions + (length - width - 1) - padding[rows, 0]]

    @torch.no_grad()
    def logprobs(self, features: Tensor, dtype: torch.dtype) -> Tensor:
        """Log-probs [n, V] of some positions, float32, or float64 where that is asked for."""
        with torch.autocast(features.device.type, enabled=False):
            return normalized_log_probs(self._decoder.project(features).to(dtype))
