"""Next-token laws of the trainable policy, with full-vocabulary tensors only for a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saki.models import LogitHead, mask_padding_ids

Reader = Callable[[Tensor, slice], Tensor]
"""(logits [n, V], which of the N tokens they belong to) -> what is kept of them, [n, M]."""


class PolicyHead:
    """Turns a causal LM and a micro-batch into a few values a token, such as the log-probs of chosen ids.

    Args:
        model: The trainable causal LM, plain or PEFT, before any distributed wrapping.
        vocab_size: Real ids; logits are cut to them before the softmax.
        chunk_tokens: Tokens whose logits exist at once. In the backward pass they are computed again.
    """

    def __init__(self, model: nn.Module, vocab_size: int, chunk_tokens: int) -> None:
        self.vocab_size, self.chunk_tokens = vocab_size, chunk_tokens
        self._head = LogitHead(base_model(model))

    def read(self, model: nn.Module, unwrapped: nn.Module, inputs: dict[str, Tensor], reader: Reader) -> Tensor:
        """Values of the policy's next-token laws at the valid response positions.

        Args:
            model: The model as the trainer wraps it (DDP, FSDP, ...), or the plain one.
            unwrapped: The same model without the wrapper.
            inputs: ``input_ids``, ``attention_mask``, ``position_ids`` [B, L] and ``response_mask`` [B, T]; the
                response takes the last T positions of the sequence.
            reader: Turns the logits of some of the N valid positions (in row-major order, cut to the real ids,
                float32 or float64 for a float64 model) into M values each. It runs again in the backward pass.

        Returns:
            [N, M], with gradient.
        """
        mask = inputs["response_mask"]
        width = mask.shape[1]

        def forward() -> Tensor:
            sequence = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
            hidden = base_model(unwrapped).base_model(**sequence, use_cache=False).last_hidden_state
            hidden = hidden[:, -width - 1 : -1][mask]
            embedding = self._head.embedding
            embed = embedding.forward

            def read_chunks(hidden: Tensor) -> Tensor:
                pieces, begin = [], 0
                for part in hidden.split(self.chunk_tokens):
                    which = slice(begin, begin + part.shape[0])
                    pieces.append(checkpoint(self._project, embed, part, reader, which, use_reentrant=False))
                    begin = which.stop
                return torch.cat(pieces)

            # One call of the embedding, whatever the number of chunks: FSDP counts the calls of the modules that it
            # shards together, and gathers their weights at the first of them.
            return _with_forward(embedding, read_chunks, hidden)

        return call_through(model, unwrapped, forward)

    def _project(self, embed: Callable[[Tensor], Tensor], hidden: Tensor, reader: Reader, which: slice) -> Tensor:
        return reader(self._cut(self._head(hidden, embed)), which)

    def _cut(self, logits: Tensor) -> Tensor:
        logits = mask_padding_ids(logits, self.vocab_size)
        return logits if logits.dtype == torch.float64 else logits.float()


def base_model(model: nn.Module) -> Any:
    """The causal LM inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def call_through(wrapper: nn.Module, inner: nn.Module, function: Callable[[], Tensor]) -> Tensor:
    """Run ``function`` as if it were ``inner``'s forward, called through its wrapper.

    Distributed wrappers act in their forward (gradient buckets of DDP, gathering of FSDP), so a computation that
    needs more than the model's own forward has to pass through it.
    """
    return _with_forward(inner, function, call=wrapper)


def _with_forward(
    module: nn.Module, forward: Callable[..., Tensor], *inputs: Tensor, call: nn.Module | None = None
) -> Tensor:
    """Call a module, or its wrapper, with another forward in place of its own: its hooks run, once."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        result: Tensor = (call or module)(*inputs)
        return result
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
