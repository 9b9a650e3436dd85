"""What ``saki plan`` takes."""

from __future__ import annotations

from dataclasses import dataclass

from saki.config.commands import option, teacher_dtype_option


@dataclass
class PlanArguments:
    """``saki plan``."""

    model: str = option("qwen3-1.7b", "Student: a short name, a folder, a file of config fields, or a hub name.")
    teacher_model: str = option("qwen3-4b", "Teacher, likewise.")
    task: str = option("train", "What to plan: train, or rollout alone.")
    device: str = option("h100", "Device: h200, h100, a100, a800 or cpu-1-core.")
    num_devices: int = option(1, "Devices in all.")
    layout: str = option("colocated", "colocated, or split into actors and engines.")
    engine_devices: int | None = option(None, "Engines of the split layout; by default half.")
    device_memory_gb: float | None = option(None, "Memory of a device instead of the preset's, 1e9 bytes.")
    bandwidth_gb_s: float | None = option(None, "Memory bandwidth instead of the preset's, 1e9 bytes a second.")
    tflops: float | None = option(None, "Peak 16-bit FLOP/s instead of the preset's, 1e12.")
    prompts_per_step: int = option(64, "Prompts of a step, over all devices.")
    num_generations: int = option(8, "Completions per prompt.")
    prompt_length: int | None = option(
        None, "Tokens of a prompt; by default max_prompt_length of a file of saki train, or 1024."
    )
    max_completion_length: int = option(7168, "Most tokens per completion.")
    mean_completion_length: float | None = option(None, "Mean tokens per completion; by default the most.")
    rollout_batch_rows: int = option(64, "Completions that roll out together on an engine.")
    block_size: int = option(8, "Proposals per verification wave (K).")
    trust_region_radius: float = option(0.02, "Bound on KL(q||p), nats.")
    correction_rate: float | None = option(None, "Share of corrected tokens; by default 0.7 of sqrt(radius / 2).")
    rollout_dtype: str = option("bfloat16", "Dtype of the engine's student.")
    teacher_dtype: str = teacher_dtype_option()
    bf16: bool = option(True, "bfloat16 autocast for the update.")
    gradient_checkpointing: bool = option(False, "Keep the input of each layer only.")
    shard: bool = option(False, "Spread weights, gradients and AdamW states over the updating devices.")
    per_device_train_batch_size: int = option(8, "Completions per micro-batch.")
    loss_chunk_tokens: int = option(1024, "Tokens whose logits exist at once in the loss.")
    launch_us: float = option(0.0, "Microseconds of the host per layer and forward; 0 for captured graphs.")
