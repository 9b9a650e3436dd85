"""How a run was launched: what many processes need, and what is refused before any weight is loaded."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from transformers import TrainingArguments

logger = logging.getLogger(__name__)

SHUTDOWN, SHUTDOWN_SECONDS = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30
"""Variable of torch's launcher: seconds between the signal that it passes on and SIGKILL; and the default."""

_SHARDED = "accelerate launch --config_file configs/accelerate/fsdp2.yaml"


def check_launch(args: TrainingArguments) -> None:
    """Look at how this process was started: it takes one GPU, however many there are, and the first one speaks for all.

    Raises:
        ValueError: If it was started for a kind of sharding that the rollout's weights cannot come from.
    """
    if args.process_index > 0:
        logging.getLogger("saki").setLevel(logging.ERROR)
    if args.n_gpu > 1:
        logger.warning(
            "%d GPUs are visible and this one process uses the first; start one process a GPU with "
            "accelerate launch --config_file configs/accelerate/ddp.yaml -m saki.cli.main train ...",
            args.n_gpu,
        )
        args._n_gpu = 1
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision in ("bf16", "fp16") and not (args.bf16 or args.fp16):
        raise ValueError(
            f"accelerate was told mixed_precision: {precision}, and {precision} is not set here, so the rollout would "
            f"keep another precision than the update; set {precision} to true, or accelerate's mixed_precision to 'no'"
        )
    if "TORCHELASTIC_RUN_ID" in os.environ and SHUTDOWN not in os.environ and args.process_index == 0:
        logger.warning(
            "the launcher passes Ctrl-C and SIGTERM on and kills this process %d s later, with or without a "
            "checkpoint; export %s=3600 before the launch, if a step takes longer",
            SHUTDOWN_SECONDS,
            SHUTDOWN,
        )
    if _is_set("ACCELERATE_USE_FSDP"):
        if os.environ.get("FSDP_VERSION", "1") == "1":
            raise ValueError(_only_fsdp2())
        if _is_set("FSDP_CPU_RAM_EFFICIENT_LOADING"):
            raise ValueError(
                "fsdp_cpu_ram_efficient_loading leaves all ranks but the first without the weights that their engines "
                "need; set it to false"
            )


def check_launched(accelerator: Any) -> None:
    """Refuse a sharding whose parameters cannot be gathered one by one.

    Raises:
        ValueError: If parameters are sharded by FSDP 1 or DeepSpeed ZeRO 3.
    """
    fsdp = getattr(accelerator.state, "fsdp_plugin", None)
    if fsdp is not None and getattr(fsdp, "fsdp_version", 1) != 2:
        raise ValueError(_only_fsdp2())
    deepspeed = getattr(accelerator.state, "deepspeed_plugin", None)
    if deepspeed is not None and getattr(deepspeed, "zero_stage", 0) == 3:
        raise ValueError(
            "DeepSpeed ZeRO 3 shards the parameters, from which saki cannot stream weights to its engines; take ZeRO 1 "
            f"or 2, or FSDP2 ({_SHARDED})"
        )


def use_float32_reductions(accelerator: Any) -> None:
    """With FSDP2 and bfloat16, keep gradients in float32 as they are reduced, and outputs as they come.

    The library's policy rounds both to bfloat16: the outputs are log-probs of tokens, and gradients of many
    micro-batches add up.
    """
    fsdp = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(fsdp, "mixed_precision_policy", None)
    if policy is not None:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        fsdp.mixed_precision_policy = MixedPrecisionPolicy(  # type: ignore[union-attr]
            param_dtype=policy.param_dtype, reduce_dtype=torch.float32
        )


def _only_fsdp2() -> str:
    return f"FSDP 1 flattens the parameters, from which saki cannot stream weights; set fsdp_version to 2 ({_SHARDED})"


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() in ("1", "true", "yes", "on", "t", "y")
