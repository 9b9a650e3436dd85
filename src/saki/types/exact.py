"""What exact mode cannot honour, and how that is said: sampling options that would change the law."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

REFUSED_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "top_h",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
    "encoder_repetition_penalty",
    "no_repeat_ngram_size",
    "length_penalty",
    "do_sample",
    "num_beams",
    "penalty_alpha",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "sequence_bias",
    "guidance_scale",
    "min_length",
    "min_new_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
"""Options of other samplers that reshape or replace the distribution."""

EXACT_LAW = "exact mode samples and scores the full vocabulary at temperature 1, in both models"


def sampling_refusal(name: str) -> str:
    """Why a sampling option is refused, and what holds instead."""
    return (
        f"{name} cannot be honoured: {EXACT_LAW}, and another distribution would break the bound on KL and the "
        "law of the tokens; leave it out"
    )


class ExactOptions:
    """Base of the dataclasses that users fill in: an unknown keyword is one sentence, a sampling option says why.

    Raises:
        ValueError: When an instance is made with a keyword that is no field.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Look at the keywords before the dataclass does."""
        known = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
        for name in kwargs:
            if name not in known:
                raise ValueError(unknown_option(name, known, cls.__name__))
        return super().__new__(cls)


def unknown_option(name: str, known: list[str] | tuple[str, ...], where: str) -> str:
    """One sentence about a key that is none of the known ones."""
    if name in REFUSED_SAMPLING:
        return sampling_refusal(name)
    return f"unknown key {name!r} in {where}; {did_you_mean(name, known, 'see --help for the valid ones')}"


def did_you_mean(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """The remedy for a misspelt name: the nearest known one, or what to do where none is near.

    Args:
        name: What came.
        known: Valid names.
        otherwise: The remedy without a near one.
        cutoff: Least similarity, from 0 to 1.
    """
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {nearest[0]!r}?" if nearest else otherwise
