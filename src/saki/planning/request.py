"""What is to be planned: two shapes, a workload and the devices it shall run on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from saki.functional import pinsker_bound
from saki.planning.devices import Device
from saki.planning.shapes import DTYPE_BYTES, ModelShape
from saki.types import check_number

TYPICAL_SHARE_OF_BOUND = 0.7
"""Correction rate over sqrt(radius / 2) where none is given: pairs at radius 0.02 show 5 to 9 per cent."""

MOST_PADDING = 1024
"""Output layers of one tokenizer differ by padding; by more than this it is another tokenizer."""

_COUNTS = (
    "num_devices",
    "prompts_per_step",
    "num_generations",
    "prompt_length",
    "max_completion_length",
    "rollout_batch_rows",
    "block_size",
    "per_device_train_batch_size",
    "loss_chunk_tokens",
)


@dataclass(frozen=True)
class PlanRequest:
    """One plan. Names are those of ``saki train`` where it has them.

    Attributes:
        student: Shape of the student.
        teacher: Shape of the teacher.
        device: Each device.
        train: Whether there is an update beside the rollout.
        layout: ``"colocated"``: every device holds all; ``"split"``: some update, the others roll out.
        num_devices: Devices in all.
        engine_devices: Those that roll out in the split layout; None for half.
        prompts_per_step: Prompts of one rollout, over all devices.
        num_generations: Completions per prompt.
        prompt_length: Tokens.
        max_completion_length: Most tokens per completion.
        mean_completion_length: Tokens; None where every completion reaches the most.
        rollout_batch_rows: Rows at once on each engine.
        block_size: K.
        trust_region_radius: Nats; above 0.
        correction_rate: c; None for a typical share of its bound sqrt(radius / 2).
        rollout_dtype: Dtype of the engine's student.
        teacher_dtype: Dtype of the teacher.
        bf16: Whether the update runs under bfloat16 autocast; weights and AdamW's states stay float32.
        gradient_checkpointing: Whether the update keeps the input of each layer only.
        shard: Whether weights, gradients and states of the update are spread over its devices.
        per_device_train_batch_size: Completions per micro-batch.
        loss_chunk_tokens: Tokens whose logits exist at once in the loss.
        launch_s: Seconds that the host needs for the kernels of one layer, in a forward and beyond what the kernels
            take; 0 for captured graphs.
        solver_accesses: Reads and writes of float32 that solving one bridge costs per vocabulary entry.

    Raises:
        ValueError: One sentence a mistake.
    """

    student: ModelShape
    teacher: ModelShape
    device: Device
    train: bool = True
    layout: str = "colocated"
    num_devices: int = 1
    engine_devices: int | None = None
    prompts_per_step: int = 64
    num_generations: int = 8
    prompt_length: int = 1024
    max_completion_length: int = 7168
    mean_completion_length: float | None = None
    rollout_batch_rows: int = 64
    block_size: int = 8
    trust_region_radius: float = 0.02
    correction_rate: float | None = None
    rollout_dtype: str = "bfloat16"
    teacher_dtype: str = "bfloat16"
    bf16: bool = True
    gradient_checkpointing: bool = False
    shard: bool = False
    per_device_train_batch_size: int = 8
    loss_chunk_tokens: int = 1024
    launch_s: float = 0.0
    solver_accesses: float = 102.0

    def __post_init__(self) -> None:
        """Check the numbers and what they say together."""
        for name in _COUNTS:
            check_number(name, getattr(self, name), least=1, whole=True)
        check_number("trust_region_radius", self.trust_region_radius, positive=True)
        check_number("launch_s", self.launch_s, least=0)
        check_number("solver_accesses", self.solver_accesses, least=0)
        for name in ("rollout_dtype", "teacher_dtype"):
            if getattr(self, name) not in DTYPE_BYTES:
                raise ValueError(f"{name} must be one of {', '.join(DTYPE_BYTES)}, got {getattr(self, name)!r}")
        if abs(self.student.vocab_size - self.teacher.vocab_size) > MOST_PADDING:
            raise ValueError(
                f"student and teacher have {self.student.vocab_size} and {self.teacher.vocab_size} logits; they must "
                "share a tokenizer, so take two models of one family"
            )
        self._check_layout()
        self._check_lengths_and_rate()

    def _check_layout(self) -> None:
        if self.layout not in ("colocated", "split"):
            raise ValueError(f"layout must be 'colocated' or 'split', got {self.layout!r}")
        if self.layout == "colocated":
            if self.engine_devices is not None:
                raise ValueError("engine_devices is for the split layout; leave it out, or give layout split")
            return
        if self.num_devices < 2:
            raise ValueError(f"the split layout needs at least 2 devices, got {self.num_devices}; give more")
        if self.engine_devices is not None:
            check_number("engine_devices", self.engine_devices, least=1, whole=True)
            if self.engine_devices >= self.num_devices:
                raise ValueError(
                    f"engine_devices is {self.engine_devices} of {self.num_devices} devices, which leaves none for the "
                    "update; give fewer"
                )

    def _check_lengths_and_rate(self) -> None:
        if self.mean_completion_length is not None:
            check_number("mean_completion_length", self.mean_completion_length, positive=True)
            if self.mean_completion_length > self.max_completion_length:
                raise ValueError(
                    f"mean_completion_length is {self.mean_completion_length:g}, above max_completion_length "
                    f"{self.max_completion_length}; lower the one or raise the other"
                )
        if self.correction_rate is not None:
            check_number("correction_rate", self.correction_rate, least=0, below=1)
            if self.correction_rate > self.bound:
                raise ValueError(
                    f"correction_rate is {self.correction_rate:g}, but radius {self.trust_region_radius:g} bounds it "
                    f"by sqrt(radius / 2) = {self.bound:.4g}; give a lower rate or a larger radius"
                )

    @property
    def bound(self) -> float:
        """The largest correction rate that the radius allows (Eq. 11)."""
        return min(1.0, pinsker_bound(self.trust_region_radius))

    @property
    def rate(self) -> float:
        """The correction rate that the plan counts with."""
        return TYPICAL_SHARE_OF_BOUND * self.bound if self.correction_rate is None else self.correction_rate

    @property
    def num_engines(self) -> int:
        """Devices that roll out."""
        if self.layout == "colocated":
            return self.num_devices
        return self.engine_devices if self.engine_devices is not None else self.num_devices // 2

    @property
    def num_actors(self) -> int:
        """Devices that update."""
        return self.num_devices if self.layout == "colocated" else self.num_devices - self.num_engines

    @property
    def rows_per_engine(self) -> int:
        """Completions that one engine rolls out in a step."""
        return math.ceil(self.prompts_per_step * self.num_generations / self.num_engines)

    @property
    def slots(self) -> int:
        """Rows at once on one engine."""
        return min(self.rollout_batch_rows, self.rows_per_engine)

    @property
    def mean_length(self) -> float:
        """Mean tokens of a completion."""
        return float(self.mean_completion_length or self.max_completion_length)
