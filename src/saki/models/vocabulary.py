"""The real vocabulary inside a padded output layer."""

from __future__ import annotations

from torch import Tensor


def mask_padding_ids(logits: Tensor, vocab_size: int) -> Tensor:
    """Cut logits to the real ids, so that padding ids have no probability anywhere.

    Output layers are often wider than the tokenizer (Qwen3: 151,936 logits for 151,669 tokens). A cut before the
    softmax is the same as a mask of -inf and costs nothing.

    Args:
        logits: [..., width] of any floating dtype.
        vocab_size: Number of real ids, in [1, width].

    Returns:
        [..., vocab_size], a view of ``logits``.

    Raises:
        ValueError: If ``vocab_size`` is outside [1, width].
    """
    width = logits.shape[-1]
    if not 1 <= vocab_size <= width:
        raise ValueError(
            f"vocab_size is {vocab_size}, but the logits are {width} wide; expected a value in [1, {width}]"
        )
    return logits[..., :vocab_size]
