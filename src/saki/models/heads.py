"""What a causal LM does between its last hidden states and its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from saki.models.architecture import check_architecture


class LogitHead:
    """Logits of last hidden states, by the model's own code.

    Most architectures apply their output embedding and nothing more, and that is what happens here. Others scale or cap
    logits, or transform the hidden states once more; there the model's own forward runs, around a base model that
    returns the given states.

    Args:
        model: The causal LM, without PEFT or distributed wrappers. It may change its weights later.

    Attributes:
        is_plain: Whether logits are the output embedding of the states and nothing more.
    """

    def __init__(self, model: nn.Module) -> None:
        causal_lm: Any = model
        self._model = causal_lm
        plain = check_architecture(causal_lm.config, type(model), supports_softcap=True).logits_are_plain
        others = [child for child in model.children() if child not in (causal_lm.base_model, self.embedding)]
        self.is_plain = plain and not any(True for child in others for _ in child.parameters())

    @property
    def embedding(self) -> nn.Module:
        """The output embedding as it is now: wrappers may put another in its place."""
        embedding: nn.Module = self._model.get_output_embeddings()
        return embedding

    def __call__(self, hidden: Tensor, embed: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Logits [..., V'], padding ids included, of hidden states [..., H].

        Args:
            hidden: What the base model calls ``last_hidden_state``, of any positions.
            embed: Called in place of the output embedding, whose hooks do not run then.
        """
        if self.is_plain:
            return (embed or self.embedding)(hidden)
        from transformers.modeling_outputs import MoeModelOutputWithPast

        flat = hidden.reshape(1, -1, hidden.shape[-1])
        states = MoeModelOutputWithPast(last_hidden_state=flat)
        replacements: list[tuple[nn.Module, Callable[..., Any]]] = [(self._model.base_model, lambda *_, **__: states)]
        if embed is not None:
            replacements.append((self.embedding, embed))
        with ExitStack() as stack:
            for module, function in replacements:
                stack.enter_context(_replaced(self._model, module, _Call(function)))
            # Not the instance's forward: a trainer may have put another in its place.
            logits: Tensor = type(self._model).forward(self._model, use_cache=False).logits
        return logits.reshape(*hidden.shape[:-1], logits.shape[-1])


class _Call(nn.Module):
    """A function in a module's place."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


@contextmanager
def _replaced(model: nn.Module, old: nn.Module, new: nn.Module) -> Iterator[None]:
    """Put another module in the place of a descendant, for a while."""
    path = next(name for name, child in model.named_modules() if child is old)
    parent, _, leaf = path.rpartition(".")
    owner = model.get_submodule(parent)
    owner._modules[leaf] = new
    try:
        yield
    finally:
        owner._modules[leaf] = old
