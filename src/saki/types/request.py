"""What is asked of a rollout engine: prompts and a :class:`RolloutRequest`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saki.types.checks import check_number
from saki.types.exact import ExactOptions

BehaviorName = Literal["student", "bridge", "skd"]
SolverName = Literal["newton", "bisection"]


@dataclass(frozen=True)
class Prompt:
    """A prompt, rendered to ids once and for all models.

    Attributes:
        key: Identity of the prompt in the random numbers: its row in the data set *before* filtering,
            in [0, 2**32).
        token_ids: Prompt token ids, at least one. The last one is the first query of the decoder.
        sample_indices: Which samples of this prompt to draw; ``None`` stands for
            ``range(request.num_generations)``. A rank that holds a part of a request names its part here.
    """

    key: int
    token_ids: tuple[int, ...]
    sample_indices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.token_ids, tuple) or any(not isinstance(index, int) for index in self.token_ids):
            raise ValueError(
                f"the token_ids of prompt {self.key} must be a tuple of ints; render text with a tokenizer"
            )
        if not 0 <= self.key < 2**32:
            raise ValueError(f"prompt key must lie in [0, 2**32), got {self.key}")
        if not self.token_ids:
            raise ValueError(f"prompt {self.key} has no tokens; a prompt needs at least one")
        if self.sample_indices is not None and any(not 0 <= index < 2**32 for index in self.sample_indices):
            raise ValueError(f"sample indices must lie in [0, 2**32), got {self.sample_indices}")


@dataclass(frozen=True)
class RolloutRequest(ExactOptions):
    """How to roll out. Together with the prompts and the weights it fixes every token.

    Attributes:
        seed: Request seed, 64 bits: :func:`saki.functional.random.request_seed` of the run seed, the
            domain and the optimizer step.
        max_completion_length: Most tokens per completion, end token included.
        num_generations: Samples per prompt.
        behavior: ``"bridge"`` samples the trust-region bridge q; ``"student"`` samples the student p; ``"skd"`` keeps
            the student's proposals that are among the teacher's top tokens, and draws from the teacher elsewhere.
        trust_region_radius: Bound on KL(q||p) in nats. At 0 the bridge is the student, and the engine
            takes the student-only path.
        block_size: Proposals per verification wave, K. It does not change the tokens.
        solver: ``"newton"``, or ``"bisection"`` for the paper's 16 waves.
        score_teacher: Whether the batch must carry teacher log-probs and modes when the rollout itself
            did not need them.
        top_k: How many of the teacher's top tokens ``"skd"`` accepts; None for another behavior.
    """

    seed: int
    max_completion_length: int
    num_generations: int = 1
    behavior: BehaviorName = "bridge"
    trust_region_radius: float = 0.0
    block_size: int = 8
    solver: SolverName = "newton"
    score_teacher: bool = True
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be a whole number in [0, 2**64), got {self.seed!r}")
        check_number("trust_region_radius", self.trust_region_radius, least=0)
        for name in ("max_completion_length", "num_generations", "block_size"):
            check_number(name, getattr(self, name), least=1, whole=True)
        if self.behavior not in ("student", "bridge", "skd"):
            raise ValueError(f"behavior must be 'student', 'bridge' or 'skd', got {self.behavior!r}")
        if (self.behavior == "skd") != (self.top_k is not None) or (self.top_k is not None and self.top_k < 1):
            raise ValueError(f"behavior 'skd', and no other, takes a top_k of at least 1, got {self.top_k}")
        if self.solver not in ("newton", "bisection"):
            raise ValueError(f"solver must be 'newton' or 'bisection', got {self.solver!r}")

    @property
    def student_only(self) -> bool:
        """True where the sampled law is the student's: no teacher forward is needed to draw a token."""
        return self.behavior == "student" or (self.behavior == "bridge" and self.trust_region_radius == 0.0)
