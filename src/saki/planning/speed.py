"""How long a step takes: a roofline of each forward, over a schedule of rows that end at differing lengths."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import pairwise

from saki.planning.request import PlanRequest
from saki.planning.shapes import DTYPE_BYTES, ModelShape

SAMPLING_BYTES = 36
"""Bytes moved per vocabulary entry of a draw: exp in float32, and a float64 cumulative sum that is searched."""

SYNC_EFFICIENCY = 0.5
"""Share of the link that a weight sync reaches."""

PROMPTS_TOGETHER = 8
"""Prompts that share one read of the weights in prefill."""

LAUNCHES_PER_LAYER = 12
"""Kernels of one layer, so that ``launch_s`` of a request gives what one kernel costs the host."""

ACCESSES_PER_KERNEL = 2.5
"""Reads and writes that one kernel of an unfused solver makes of an entry."""


def tokens_per_wave(correction_rate: float, block_size: int) -> float:
    """E = (1 - (1 - c)^K) / c, tokens committed by a wave whose positions are corrected with probability c each.

    K at c = 0. The wave commits through the first correction, so position j is committed with (1 - c)^(j - 1).
    """
    if correction_rate == 0:
        return float(block_size)
    return -math.expm1(block_size * math.log1p(-correction_rate)) / correction_rate


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and what they give.

    Attributes:
        tokens_per_wave: E.
        tokens: Committed tokens of the step, all engines.
        student_only_s: The rollout without a teacher.
        split: ``draft``, ``verify``, ``bridge`` and ``rest`` (prefill) of the exact-q rollout.
        update_s: The update; 0 without training.
        sync_s: The weight sync; 0 without training.
    """

    tokens_per_wave: float
    tokens: float
    student_only_s: float
    split: dict[str, float]
    update_s: float
    sync_s: float

    @property
    def exact_q_s(self) -> float:
        """The exact-q rollout."""
        return sum(self.split.values())

    @property
    def ratio(self) -> float:
        """Exact-q speed over student-only speed."""
        return self.student_only_s / self.exact_q_s

    @property
    def step_s(self) -> float:
        """Rollout, update and sync."""
        return self.exact_q_s + self.update_s + self.sync_s


def completion_lengths(request: PlanRequest) -> list[float]:
    """Lengths of one engine's completions: evenly spaced quantiles of an exponential law that is cut at the most.

    The law's scale is chosen so that their mean is the request's.
    """
    count, most, mean = request.rows_per_engine, float(request.max_completion_length), request.mean_length
    if mean >= most:
        return [most] * count
    quantiles = [-math.log1p(-(i + 0.5) / count) for i in range(count)]
    low, high = 0.5 * mean, 1e6 * most
    for _ in range(80):
        scale = math.sqrt(low * high)
        short = sum(min(most, scale * value) for value in quantiles) < mean * count
        low, high = (scale, high) if short else (low, scale)
    lengths = [min(most, high * value) for value in quantiles]
    # Rows come in no order of length; a fixed stride stands for that.
    stride = next(step for step in range(max(1, int(0.618 * count)), 2 * count + 2) if math.gcd(step, count) == 1)
    return [lengths[i * stride % count] for i in range(count)]


def rounds(request: PlanRequest) -> list[tuple[float, int, float]]:
    """(tokens a row advances, rows that run, mean length of their contexts) while nothing changes.

    Slots are refilled at once. A row advances at the same pace whatever its neighbours do.
    """
    free = [0.0] * request.slots
    spans = []
    for length in completion_lengths(request):
        begin = heapq.heappop(free)
        heapq.heappush(free, begin + length)
        spans.append((begin, begin + length))
    events = sorted({time for span in spans for time in span})
    changes = sorted([(begin, 1, begin) for begin, _ in spans] + [(end, -1, begin) for begin, end in spans])
    result, place, running, begun = [], 0, 0, 0.0
    for begin, end in pairwise(events):
        while place < len(changes) and changes[place][0] <= begin:
            running += changes[place][1]
            begun += changes[place][1] * changes[place][2]
            place += 1
        if running:
            age = 0.5 * (begin + end) - begun / running
            result.append((end - begin, running, request.prompt_length + age))
    return result


def roofline(request: PlanRequest, num_bytes: float, flops: float, dtype_bytes: int) -> float:
    """Seconds: the longer of moving the bytes and of doing the FLOPs, at the device's stated efficiencies."""
    device = request.device
    moved = num_bytes / (device.bytes_per_s * device.bandwidth_efficiency)
    return max(moved, flops / (device.peak_flops(dtype_bytes) * device.flops_efficiency))


def forward_s(request: PlanRequest, shape: ModelShape, dtype: str, rows: float, queries: int, context: float) -> float:
    """One forward of some tokens a row, with log-probs at each; weights and caches are read once."""
    size = DTYPE_BYTES[dtype]
    tokens = rows * queries
    matrices = shape.layer_matrix_parameters + shape.head_parameters
    flops = 2 * matrices * tokens + 4 * tokens * context * shape.num_layers * shape.num_heads * shape.head_dim
    num_bytes = matrices * size + rows * context * shape.kv_bytes_per_token(dtype)
    num_bytes += tokens * shape.vocab_size * (2 * size + 8)  # logits written and read, log-softmax written and read
    return roofline(request, num_bytes, flops, size) + shape.num_layers * request.launch_s


def rollout_s(request: PlanRequest) -> tuple[float, dict[str, float]]:
    """Seconds of the student-only rollout, and of the parts of the exact-q one."""
    student, teacher, width = request.student, request.teacher, request.block_size
    advance = tokens_per_wave(request.rate, width)
    launches = request.solver_accesses / ACCESSES_PER_KERNEL * request.launch_s / LAUNCHES_PER_LAYER
    alone = draft = verify = bridge = 0.0
    for tokens, rows, context in rounds(request):
        sampling = roofline(request, rows * student.vocab_size * SAMPLING_BYTES, 0, 4)
        step = forward_s(request, student, request.rollout_dtype, rows, 1, context) + sampling
        waves = tokens / advance
        alone += tokens * step
        draft += waves * width * step
        verify += waves * forward_s(request, teacher, request.teacher_dtype, rows, width, context)
        entries = rows * width * student.vocab_size
        bridge += waves * (roofline(request, 4 * request.solver_accesses * entries, 0, 4) + launches)
    prompts = request.rows_per_engine / request.num_generations
    prefill = [
        roofline(
            request,
            math.ceil(prompts / PROMPTS_TOGETHER) * shape.weight_bytes(dtype),
            2 * shape.layer_matrix_parameters * prompts * request.prompt_length,
            DTYPE_BYTES[dtype],
        )
        for shape, dtype in ((student, request.rollout_dtype), (teacher, request.teacher_dtype))
    ]
    return alone + prefill[0], {"draft": draft, "verify": verify, "bridge": bridge, "rest": sum(prefill)}


def update_s(request: PlanRequest) -> float:
    """Forward and backward of all completions on the actors; a checkpointed layer runs forward twice."""
    shape = request.student
    completions = request.prompts_per_step * request.num_generations / request.num_actors
    length = request.prompt_length + request.mean_length
    attention = 2 * length**2 * shape.num_layers * shape.num_heads * shape.head_dim
    forward = 2 * shape.layer_matrix_parameters * length + attention
    # The head's logits are computed again in the backward pass of each chunk.
    head = 2 * shape.head_parameters * request.mean_length
    flops = completions * ((4 if request.gradient_checkpointing else 3) * forward + 4 * head)
    return roofline(request, 0, flops, 2 if request.bf16 else 4)


def step_time(request: PlanRequest) -> StepTime:
    """The times of one step."""
    alone, split = rollout_s(request)
    synced = request.student.weight_bytes(request.rollout_dtype)
    link = request.device.link_bytes_per_s if request.layout == "split" else request.device.bytes_per_s
    return StepTime(
        tokens_per_wave=tokens_per_wave(request.rate, request.block_size),
        tokens=request.prompts_per_step * request.num_generations * request.mean_length,
        student_only_s=alone,
        split=split,
        update_s=update_s(request) if request.train else 0.0,
        sync_s=synced / (SYNC_EFFICIENCY * link) if request.train else 0.0,
    )
