"""Log-probs of the trainable policy, with full-vocabulary logits only for a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saki.models import check_architecture, mask_padding_ids


class PolicyHead:
    """Turns a causal LM and a micro-batch into log-probs of chosen tokens.

    Args:
        model: The trainable causal LM, plain or PEFT, before any distributed wrapping.
        vocab_size: Real ids; logits are cut to them before the softmax.
        chunk_tokens: Tokens whose logits exist at once. In the backward pass they are computed again.
    """

    def __init__(self, model: nn.Module, vocab_size: int, chunk_tokens: int) -> None:
        causal_lm = base_model(model)
        self.vocab_size, self.chunk_tokens = vocab_size, chunk_tokens
        self.chunked = check_architecture(causal_lm.config, type(causal_lm)).logits_are_plain

    def logprobs(self, model: nn.Module, unwrapped: nn.Module, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """log pi of chosen tokens at the valid response positions.

        Args:
            model: The model as the trainer wraps it (DDP, FSDP, ...), or the plain one.
            unwrapped: The same model without the wrapper.
            inputs: ``input_ids``, ``attention_mask``, ``position_ids`` [B, L] and ``response_mask`` [B, T]; the
                response takes the last T positions of the sequence.
            targets: [N, M] int64, M ids for each of the N valid positions, in row-major order.

        Returns:
            [N, M] float32 (float64 for a float64 model), with gradient.
        """
        mask = inputs["response_mask"]
        width = mask.shape[1]

        def forward() -> Tensor:
            causal_lm = base_model(unwrapped)
            sequence = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
            if not self.chunked:
                logits = causal_lm(**sequence, use_cache=False, logits_to_keep=width + 1).logits[:, :-1]
                return self._select(logits[mask], targets)
            hidden = causal_lm.base_model(**sequence, use_cache=False).last_hidden_state
            hidden = hidden[:, -width - 1 : -1][mask]
            head = causal_lm.get_output_embeddings()
            pieces = [
                checkpoint(self._project, head, part, ids, use_reentrant=False)
                for part, ids in zip(hidden.split(self.chunk_tokens), targets.split(self.chunk_tokens), strict=True)
            ]
            return torch.cat(pieces) if pieces else hidden.new_zeros(targets.shape)

        return call_through(model, unwrapped, forward)

    def _project(self, head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
        return self._select(head(hidden), targets)

    def _select(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = mask_padding_ids(logits, self.vocab_size)
        if logits.dtype != torch.float64:
            logits = logits.float()
        return logits.gather(-1, targets) - logits.logsumexp(dim=-1, keepdim=True)


def base_model(model: nn.Module) -> Any:
    """The causal LM inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def call_through(wrapper: nn.Module, inner: nn.Module, function: Callable[[], Tensor]) -> Tensor:
    """Run ``function`` as if it were ``inner``'s forward, called through its wrapper.

    Distributed wrappers act in their forward (gradient buckets of DDP, gathering of FSDP), so a computation that
    needs more than the model's own forward has to pass through it.
    """
    if wrapper is inner:
        return function()
    original = inner.forward
    inner.forward = function
    try:
        return wrapper()
    finally:
        inner.forward = original
