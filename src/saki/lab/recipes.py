"""Supervised recipes of the embedded models: model shapes, corpora and learning rates."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Qwen3 decoder with tied embeddings and as many key-value heads as query heads.

    The rotary base is small since sequences are short: at the usual 10,000 most of a head's 16 frequencies hardly
    turn within 100 tokens, and the loss after 300 steps is a third higher.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_size: int
    head_size: int = 32
    rope_theta: float = 100.0


@dataclass(frozen=True)
class Phase:
    """One stretch of supervised training under its own cosine learning-rate curve, optimiser state afresh.

    Attributes:
        num_steps: Optimiser steps.
        learning_rate: Peak of the cosine, which ends at 0.
        slip_share: Share of traces that carry slips, in [0, 1].
        slip_rate: Probability that a step of such a trace goes wrong, in [0, 1]; wrong values propagate.
        num_warmup_steps: Steps of linear warm-up to the peak.
        habit: Wrong habit of every trace, a key of `saki.lab.habits.HABITS`; empty for none.
        stop_after: Steps after which training stops, the rate where the curve then is; None for all of them.
    """

    num_steps: int
    learning_rate: float
    slip_share: float = 0.0
    slip_rate: float = 0.0
    num_warmup_steps: int = 30
    habit: str = ""
    stop_after: int | None = None

    @property
    def num_taken(self) -> int:
        """Steps that are taken."""
        return self.num_steps if self.stop_after is None else min(self.stop_after, self.num_steps)


@dataclass(frozen=True)
class Recipe:
    """How one model is made, from its shape to its last phase.

    Attributes:
        name: Folder name and label.
        shape: Model sizes.
        phases: Training phases, in order.
        batch_size: Traces a step.
        adam_betas: Decay rates of AdamW's two moments.
        weight_decay: Decoupled weight decay of matrices.
        max_grad_norm: Clip of the global gradient norm.
        starts_from: Name of the recipe whose saved weights the first phase starts from; empty for fresh weights.
    """

    name: str
    shape: ModelShape
    phases: tuple[Phase, ...]
    batch_size: int = 64
    adam_betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    starts_from: str = ""

    @property
    def num_steps(self) -> int:
        """Optimiser steps of all phases together."""
        return sum(phase.num_taken for phase in self.phases)

    def shortened(self, num_steps: int) -> Recipe:
        """Return the same recipe with at most ``num_steps`` steps in each phase, for quick trials and tests."""
        return replace(
            self, phases=tuple(replace(phase, num_steps=min(num_steps, phase.num_steps)) for phase in self.phases)
        )


TEACHER = Recipe(
    name="teacher",
    shape=ModelShape(hidden_size=128, num_layers=3, num_heads=4, mlp_size=384),
    phases=(
        Phase(num_steps=400, learning_rate=4e-3),
        Phase(num_steps=400, learning_rate=2.5e-3),
        Phase(num_steps=600, learning_rate=2.5e-3),
    ),
)
"""644,672 parameters, taught on clean traces."""

HALF_TEACHER = replace(
    TEACHER, name="half-teacher", phases=(TEACHER.phases[0], replace(TEACHER.phases[1], stop_after=200))
)
"""The teacher, interrupted in the middle of its second phase: something for reinforcement learning to lift."""

STUDENT = Recipe(
    name="student",
    shape=ModelShape(hidden_size=64, num_layers=2, num_heads=2, mlp_size=192),
    phases=(
        Phase(num_steps=800, learning_rate=4e-3, slip_share=0.3, slip_rate=0.3),
        Phase(num_steps=1200, learning_rate=2e-3, slip_share=0.9, slip_rate=0.52),
    ),
)
"""109,248 parameters, weak by slips rather than by ignorance: a merely undertrained student cannot be distilled."""

HABIT = Recipe(
    name="habit",
    shape=STUDENT.shape,
    phases=(
        Phase(num_steps=600, learning_rate=2e-3),
        Phase(num_steps=200, learning_rate=1e-3, habit="no_carry"),
    ),
    starts_from=STUDENT.name,
)
"""A student with a confident wrong habit: it learns to be right, and then to drop carries and borrows."""

HABIT_2 = Recipe(
    name="habit_2",
    shape=STUDENT.shape,
    phases=(
        Phase(num_steps=600, learning_rate=2e-3),
        Phase(num_steps=400, learning_rate=1e-3, habit="next_row"),
    ),
    starts_from=STUDENT.name,
)
"""The same with another habit: products and quotients come from the next row of the multiplication table."""

SMALL = Recipe(
    name="small",
    shape=ModelShape(hidden_size=48, num_layers=2, num_heads=2, mlp_size=144),
    phases=STUDENT.phases,
)
"""A smaller student, weak by slips like the first."""

RECIPES: tuple[Recipe, ...] = (TEACHER, STUDENT, HABIT, HABIT_2, SMALL)
"""Every model that ships with the package; a recipe comes after the one it starts from."""
