"""What is verified: a pair, the engine built from it, and how far two forwards of one model may differ."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from saki.functional import normalized_log_probs
from saki.models import ModelPair
from saki.rollout import HFDecoder, ResidentEngine

ROUNDING_FACTOR = 30.0
"""Cached and plain log-probs may differ by this many times what two plain forwards of different lengths differ by."""

FLOOR_UNITS = 64.0
"""... or by this many units in the last place of the largest logit, whichever is more."""


@dataclass(frozen=True)
class Check:
    """Outcome of one check.

    Attributes:
        name: What was checked.
        passed: Whether it held.
        detail: One sentence with the figures that decided.
        figures: The same figures for machines.
    """

    name: str
    passed: bool
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How much to verify.

    Attributes:
        trust_region_radius: Radius of the even rounds, nats; odd rounds use a quarter of it.
        block_size: Proposals per wave, K.
        num_generations: Samples per prompt.
        max_completion_length: Most tokens per completion.
        batch_rows: Rows that roll out together.
        alpha: False-alarm rate of the law test: how often a correct engine may be refused.
        max_tokens: Stop the law test after this many committed tokens.
        max_seconds: ... or after this many seconds, whichever comes first; one round is always run.
        cache_waves: Waves of random commits and roll-backs in the cache check.
        seed: Seed of everything drawn.
    """

    trust_region_radius: float = 0.1
    block_size: int = 8
    num_generations: int = 4
    max_completion_length: int = 32
    batch_rows: int = 32
    alpha: float = 1e-6
    max_tokens: int = 20_000
    max_seconds: float = 180.0
    cache_waves: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.trust_region_radius < float("inf"):
            raise ValueError(f"trust_region_radius must be above 0, got {self.trust_region_radius}; at 0 q is p")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie in (0, 1), got {self.alpha}")
        for name in ("block_size", "num_generations", "max_completion_length", "batch_rows", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.cache_waves < 1:
            raise ValueError(f"cache_waves must be at least 1, got {self.cache_waves}")
        if not self.max_seconds > 0:
            raise ValueError(f"max_seconds must be above 0, got {self.max_seconds}")


class Subject:
    """A pair under test. The plain models keep the library's attention; the engine works on copies.

    Args:
        pair: Student, teacher, tokenizer and what they share.
        settings: How much to verify.

    Attributes:
        engine: The engine under test.
        rounding: Per side, how far cached and plain log-probs may differ.
    """

    def __init__(self, pair: ModelPair, settings: Settings) -> None:
        if pair.teacher is None:
            raise ValueError("saki verify needs a teacher; name one with --teacher_model")
        self.pair, self.settings, self.spec = pair, settings, pair.spec
        self.student: Any = pair.student
        self.teacher: Any = pair.teacher
        self.decoders = {
            "student": HFDecoder(copy.deepcopy(self.student), self.spec.vocab_size),
            "teacher": HFDecoder(copy.deepcopy(self.teacher), self.spec.vocab_size),
        }
        self.engine = self.new_engine(settings.batch_rows)
        self.rounding = {side: measure_rounding(self.model(side), self.spec.vocab_size) for side in self.decoders}

    def model(self, side: Literal["student", "teacher"] | str) -> Any:
        """The plain model of a side."""
        return self.student if side == "student" else self.teacher

    def new_engine(self, batch_rows: int) -> ResidentEngine:
        """An engine on the same decoders."""
        student, teacher = self.decoders["student"], self.decoders["teacher"]
        return ResidentEngine(student, teacher, self.spec.stop_token_ids, max_batch_rows=batch_rows)


@dataclass(frozen=True)
class Rounding:
    """What two ways to compute the same log-probs may differ by in a model's precision.

    Attributes:
        gap: Measured between plain forwards of differing length, nats, at least one unit of the largest logit.
        allowed: The limit for comparisons: :data:`ROUNDING_FACTOR` times that, or :data:`FLOOR_UNITS` units.
    """

    gap: float
    allowed: float


@torch.no_grad()
def measure_rounding(model: Any, vocab_size: int, length: int = 24) -> Rounding:
    """Run a model on a text of low ids, and on its prefixes of several lengths, without any cache."""
    device = next(model.parameters()).device
    ids = torch.arange(3, length + 3, device=device).remainder(vocab_size).unsqueeze(0)
    whole = model(input_ids=ids, use_cache=False).logits[0, :, :vocab_size]
    gap = 0.0
    for cut in range(1, length, 5):
        part = model(input_ids=ids[:, :cut], use_cache=False).logits[0, -1, :vocab_size]
        difference = normalized_log_probs(part) - normalized_log_probs(whole[cut - 1])
        gap = max(gap, float(difference[torch.isfinite(difference)].abs().max()))
    largest = float(whole[torch.isfinite(whole)].abs().max())
    unit = torch.finfo(whole.dtype).eps * largest
    return Rounding(max(gap, unit), max(ROUNDING_FACTOR * gap, FLOOR_UNITS * unit))
