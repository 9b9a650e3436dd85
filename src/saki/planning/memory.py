"""Peak memory of a device, item by item (Eq. 79-81, and the transient tensors that they leave out)."""

from __future__ import annotations

from dataclasses import dataclass

from saki.planning.request import PlanRequest
from saki.planning.shapes import DTYPE_BYTES, ModelShape

PROMPTS_TOGETHER = 8
"""Prompts that the engine prefills together at least; they stay until their last sample is admitted."""

PREFILL_CHUNK = 512
"""Prompt positions per prefill forward."""

RECORD_BYTES = 3 * 8 + 1 + 7 * 4
"""What the rollout records of a position: three ids, a flag and seven float32 numbers."""

BRIDGE_GROUP = {True: 2**16, False: 2**24}
"""Entries that the bridge solver takes at once, on a host and on an accelerator; it holds three float32 of each."""

RESIDUAL_TENSORS = 6
"""float64 tensors [R, V] that live while a correction is drawn."""

ADAM_BYTES = 8
"""Two float32 moments a parameter."""


@dataclass(frozen=True)
class MemoryItem:
    """One entry of a device's memory.

    Attributes:
        name: What it is.
        num_bytes: Bytes.
        phase: ``"resident"``, ``"rollout"`` or ``"update"``; the last two do not exist together.
    """

    name: str
    num_bytes: float
    phase: str


@dataclass(frozen=True)
class DeviceMemory:
    """One device's memory.

    Attributes:
        role: ``"engine"``, ``"actor"`` or ``"all"``.
        items: What it is made of.
        capacity: Bytes of the device, or None.
    """

    role: str
    items: tuple[MemoryItem, ...]
    capacity: float | None

    def of(self, phase: str) -> float:
        """Bytes of one phase's items."""
        return sum(item.num_bytes for item in self.items if item.phase == phase)

    @property
    def peak(self) -> float:
        """Resident, and the larger of the two phases: a rollout's caches are gone before the update."""
        return self.of("resident") + max(self.of("rollout"), self.of("update"))

    @property
    def fits(self) -> bool:
        """Whether the peak is within the capacity."""
        return self.capacity is None or self.peak <= self.capacity


def num_slots(request: PlanRequest) -> int:
    """Cache positions of a row: the engine's slabs have room for prompt, completion and one block."""
    return request.prompt_length + request.max_completion_length + request.block_size


def kv_bytes(request: PlanRequest) -> tuple[int, int]:
    """Full slabs of student and teacher on one engine, KV_s and KV_T of Eq. 80."""
    entries = request.slots * num_slots(request)
    return (
        entries * request.student.kv_bytes_per_token(request.rollout_dtype),
        entries * request.teacher.kv_bytes_per_token(request.teacher_dtype),
    )


def wave_bytes(request: PlanRequest) -> float:
    """Full-vocabulary tensors of one wave at their peak.

    The stack of the drafts stands beside the drafts; then the student's log-probs wait for the teacher's logits, which
    become float32 log-probs; then both wait for the solver, which on a host gathers what it solves, and for the
    residual, whose weights are float64.
    """
    row = request.slots * request.student.vocab_size
    block = row * request.block_size
    teacher = DTYPE_BYTES[request.teacher_dtype]
    wide = 8 if request.rollout_dtype == "float64" else 4
    both = 2 * wide * block
    logits = block * (teacher + (wide if teacher < wide else 0))
    group = min(block, max(BRIDGE_GROUP[request.device.is_cpu], request.student.vocab_size))
    solve = (both if request.device.is_cpu else 0) + 3 * 4 * group
    return float(both + max(logits, solve, RESIDUAL_TENSORS * 8 * row))


def forward_bytes(shape: ModelShape, tokens: int, dtype: str) -> float:
    """Activations of a forward without gradients where they are widest: inside one feed-forward or attention."""
    width = max(3 * shape.intermediate_size, (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim)
    return float(tokens * (width + 3 * shape.hidden_size) * DTYPE_BYTES[dtype])


def engine_items(request: PlanRequest) -> list[MemoryItem]:
    """What a rollout needs."""
    student_kv, teacher_kv = kv_bytes(request)
    prompts = min(max(PROMPTS_TOGETHER, -(-request.slots // request.num_generations)), request.prompts_per_step)
    per_token = request.student.kv_bytes_per_token(request.rollout_dtype)
    per_token += request.teacher.kv_bytes_per_token(request.teacher_dtype)
    # Prompts are copied to their rows and dropped before the first wave, unless rows still wait for a slot.
    waits = request.rows_per_engine > request.slots
    waiting = prompts * (request.prompt_length - 1) * per_token if waits else 0
    tokens = max(prompts * min(request.prompt_length, PREFILL_CHUNK), request.slots * request.block_size)
    activations = max(
        forward_bytes(request.student, tokens, request.rollout_dtype),
        forward_bytes(request.teacher, tokens, request.teacher_dtype),
    )
    records = (request.rows_per_engine + 1) * (request.max_completion_length + 1) * RECORD_BYTES
    return [
        MemoryItem("student weights (engine)", request.student.weight_bytes(request.rollout_dtype), "resident"),
        MemoryItem("teacher weights", request.teacher.weight_bytes(request.teacher_dtype), "resident"),
        MemoryItem("student KV", student_kv, "rollout"),
        MemoryItem("teacher KV", teacher_kv, "rollout"),
        MemoryItem("KV of waiting prompts", waiting, "rollout"),
        MemoryItem("vocabulary tensors of a wave", wave_bytes(request), "rollout"),
        MemoryItem("activations of a forward", activations, "rollout"),
        MemoryItem("records", records, "rollout"),
    ]


def activation_bytes(request: PlanRequest) -> float:
    """What the backward pass of one micro-batch needs of the layers.

    A layer keeps, per token: the inputs and the normalised inputs of its two norms (float32 in the library), queries,
    keys, values, the attention's result twice, the inputs of its products, and four tensors of the feed-forward's
    width (gate, its activation, up, their product). With checkpointing each layer keeps its input, and one the rest.
    """
    shape = request.student
    tokens = request.per_device_train_batch_size * (request.prompt_length + request.max_completion_length)
    narrow = 2 if request.bf16 else 4
    heads = (3 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    inner = 2 * shape.hidden_size + heads + 4 * shape.intermediate_size
    layer = tokens * (4 * 4 * shape.hidden_size + narrow * inner)
    if request.gradient_checkpointing:
        return float(layer + shape.num_layers * tokens * shape.hidden_size * 4)
    return float(layer * shape.num_layers)


def logit_bytes(request: PlanRequest) -> float:
    """One chunk of the loss: logits, their float32 form, and in the backward pass the gradient in two parts."""
    tokens = min(request.loss_chunk_tokens, request.per_device_train_batch_size * request.max_completion_length)
    return float(tokens * request.student.vocab_size * (4 * 4 + (2 if request.bf16 else 0)))


def actor_items(request: PlanRequest) -> list[MemoryItem]:
    """What an update needs: float32 weights and AdamW states always, gradients and activations while it runs."""
    share = request.student.num_parameters / (request.num_actors if request.shard else 1)
    items = [
        MemoryItem("student weights (trained, float32)", 4 * share, "resident"),
        MemoryItem("AdamW states", ADAM_BYTES * share, "resident"),
        MemoryItem("gradients", 4 * share, "update"),
        MemoryItem("activations of the update", activation_bytes(request), "update"),
        MemoryItem("logits of a loss chunk", logit_bytes(request), "update"),
    ]
    if request.bf16:
        copies = 2.0 * (request.student.layer_matrix_parameters + request.student.head_parameters)
        items.append(MemoryItem("bfloat16 copies of autocast", copies, "update"))
    return items


def device_memory(request: PlanRequest) -> tuple[DeviceMemory, ...]:
    """The memory of each kind of device in the layout."""
    runtime = MemoryItem("libraries and context", request.device.runtime_bytes, "resident")
    capacity = request.device.memory_bytes
    engine = engine_items(request)
    if not request.train:
        return (DeviceMemory("engine", (runtime, *engine), capacity),)
    actor = actor_items(request)
    if request.layout == "colocated":
        return (DeviceMemory("all", (runtime, *engine, *actor), capacity),)
    return DeviceMemory("engine", (runtime, *engine), capacity), DeviceMemory("actor", (runtime, *actor), capacity)
