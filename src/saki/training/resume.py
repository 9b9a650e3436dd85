"""What a resumed run must share with the one that wrote the checkpoint."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from transformers import TrainingArguments

from saki.models import plain_state
from saki.rollout import model_checksum
from saki.types import Prompt

OPTIMIZER_FIELDS = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
"""Settings that a resumed optimizer takes from the checkpoint, whatever the configuration says."""

RESUME_FIELDS = (
    "seed",
    "prompts_per_step",
    "num_generations",
    "max_completion_length",
    "max_prompt_length",
    "trust_region_radius",
    "radius_schedule",
    "radius_anneal_steps",
    "radius_floor",
    "advantage_clip",
    *OPTIMIZER_FIELDS,
)
"""Settings of the configuration that decide what the steps do."""

SAMPLED = 1024
"""Numbers of a weight that :func:`weights_facts` looks at."""


def resume_facts(
    args: TrainingArguments, method: str, prompts: Sequence[Prompt], fields: Sequence[str] = RESUME_FIELDS
) -> dict[str, Any]:
    """Facts to write into a checkpoint, and to compare with it on resume.

    Args:
        args: The configuration.
        method: Name of the method.
        prompts: The rendered prompts; their CRC-32 tells another data set, template or tokenizer.
        fields: Settings that decide what the steps do.
    """
    crc32 = 0
    for prompt in prompts:
        crc32 = zlib.crc32(array("q", [prompt.key, len(prompt.token_ids), *prompt.token_ids]).tobytes(), crc32)
    return {
        "method": method,
        **{name: getattr(args, name) for name in fields},
        "num_prompts": len(prompts),
        "prompts_crc32": crc32,
        "data_seed": args.data_seed if args.data_seed is not None else args.seed,
        "save_only_model": False,  # such a checkpoint lacks the optimizer, so no run can go on from it
    }


def weights_facts(student: nn.Module, teacher: nn.Module | None) -> dict[str, str]:
    """Facts that tell another teacher, and another base model under an adapter.

    They are checksums of the first :data:`SAMPLED` numbers of each weight, which is quick for large models. The weights
    of a student without an adapter are no fact: a checkpoint holds them.

    Args:
        student: The trainable model, plain or PEFT, before any distributed wrapping.
        teacher: The teacher, or None where nobody but the engine has it.
    """
    facts = {}
    if teacher is not None:
        facts["teacher_weights"] = _sample(plain_state(teacher))
    if hasattr(student, "get_base_model"):
        frozen = ((name, value) for name, value in student.named_parameters() if not value.requires_grad)
        facts["base_weights"] = _sample(frozen)
    return facts


def adapter_facts(student: nn.Module) -> dict[str, str]:
    """The adapter that a checkpoint's weights are for, in words.

    Args:
        student: The trainable model, plain or PEFT.
    """
    adapters = getattr(student, "peft_config", None)
    if not adapters or not hasattr(student, "get_base_model"):
        return {"adapter": "none"}
    settings = adapters[student.active_adapter].to_dict()
    return {"adapter": ", ".join(f"{name} {_in_words(settings[name])}" for name in _ADAPTER if settings.get(name))}


_ADAPTER = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "target_modules", "modules_to_save")


def _in_words(value: Any) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + " ".join(sorted(map(str, value))) + "]"
    return str(getattr(value, "value", value))


def _sample(weights: Iterable[tuple[str, Tensor]]) -> str:
    return model_checksum((name, value.detach().flatten()[:SAMPLED].float()) for name, value in weights)
