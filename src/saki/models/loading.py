"""Load tokenizers, causal language models and pairs of them from plain Hugging Face folders or hub names."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from saki.models.architecture import ArchitectureReport, check_architecture
from saki.models.compatibility import PairSpec, resolve_pair

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class ModelLoadError(ValueError):
    """A checkpoint is missing, incomplete or malformed."""


@dataclass(frozen=True)
class ModelPair:
    """A student, its teacher and what they share.

    Attributes:
        student: The student, in eval mode, with gradients.
        teacher: The teacher, in eval mode, without gradients; None for a student alone.
        tokenizer: The student's tokenizer. It renders prompts for both models.
        spec: Real vocabulary, stop set and padding id.
        student_architecture: Layers, windows and logit facts of the student.
        teacher_architecture: The same of the teacher.
    """

    student: PreTrainedModel
    teacher: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    spec: PairSpec
    student_architecture: ArchitectureReport
    teacher_architecture: ArchitectureReport | None


def load_tokenizer(
    name_or_path: str | os.PathLike[str], *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        name_or_path: Folder or hub name.
        revision: Hub branch, tag or commit.
        trust_remote_code: Whether to run code that comes with the checkpoint.

    Returns:
        The tokenizer.

    Raises:
        ModelLoadError: If there is no usable tokenizer.
    """
    from transformers import AutoTokenizer

    name = os.fspath(name_or_path)
    _check_folder(name)
    return _attempt(
        f"a tokenizer from {name!r}",
        lambda: AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code),
    )


def load_causal_lm(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "cpu",
    attn_implementation: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a causal language model, from safetensors only.

    A folder with ``adapter_config.json`` is a PEFT LoRA adapter: its base model is loaded, the adapter is merged in
    float32 and the plain model is returned in ``dtype``. Every weight must come from the checkpoint: a missing or
    misshapen one is an error, never a random initialisation.

    Args:
        name_or_path: Folder or hub name.
        dtype: Dtype of the weights, or ``"auto"`` for the checkpoint's own.
        device: Where to put the model.
        attn_implementation: Attention implementation of transformers, by default the library's choice.
        revision: Hub branch, tag or commit (of the model itself; the base of an adapter folder has its own).
        trust_remote_code: Whether to run code that comes with the checkpoint.

    Returns:
        The model in eval mode.

    Raises:
        ModelLoadError: If the checkpoint is missing, empty, malformed, incomplete or pickled.
    """
    name = os.fspath(name_or_path)
    resolved = _resolve_dtype(dtype)
    _check_folder(name)
    options = {"attn_implementation": attn_implementation, "trust_remote_code": trust_remote_code}
    if Path(name, "adapter_config.json").is_file():
        model = _load_adapter(name, resolved, options)
    else:
        if Path(name).is_dir():
            _check_weights(name, "config.json", "weights")
        model = _load_plain(name, resolved, revision, options)
    return model.to(device).eval()  # type: ignore[arg-type]


def load_pair(
    student: str | os.PathLike[str],
    teacher: str | os.PathLike[str] | None,
    *,
    student_dtype: torch.dtype | str = torch.float32,
    teacher_dtype: torch.dtype | str = "auto",
    device: torch.device | str = "cpu",
    attn_implementation: str | None = None,
    student_revision: str | None = None,
    teacher_revision: str | None = None,
    trust_remote_code: bool = False,
    supports_softcap: bool = False,
) -> ModelPair:
    """Load a student and its teacher, and check that they fit each other and the engine.

    The student is float32 by default, whatever its checkpoint: at learning rates near 1e-6 updates vanish in
    bfloat16.

    Args:
        student: Folder or hub name of the student.
        teacher: Folder or hub name of the teacher, or None for a student alone.
        student_dtype: Dtype of the student, or ``"auto"`` for the checkpoint's own.
        teacher_dtype: Dtype of the teacher, or ``"auto"`` for the checkpoint's own.
        device: Where to put both.
        attn_implementation: Attention implementation of transformers.
        student_revision: Hub revision of the student.
        teacher_revision: Hub revision of the teacher.
        trust_remote_code: Whether to run code that comes with the checkpoints.
        supports_softcap: Whether the engine's attention applies a soft cap; see
            :func:`saki.models.check_architecture`.

    Returns:
        The pair.

    Raises:
        ModelLoadError: If a checkpoint cannot be loaded.
        TokenizerMismatchError: If the tokenizers differ.
        UnsupportedArchitectureError: If the engine cannot run one of the models.
        ValueError: If no stop id is known.
    """
    student_tokenizer = load_tokenizer(student, revision=student_revision, trust_remote_code=trust_remote_code)
    student_model = load_causal_lm(
        student,
        dtype=student_dtype,
        device=device,
        attn_implementation=attn_implementation,
        revision=student_revision,
        trust_remote_code=trust_remote_code,
    )
    student_report = check_architecture(student_model.config, type(student_model), supports_softcap=supports_softcap)
    teacher_model, teacher_tokenizer, teacher_report = None, None, None
    if teacher is not None:
        teacher_tokenizer = load_tokenizer(teacher, revision=teacher_revision, trust_remote_code=trust_remote_code)
        teacher_model = load_causal_lm(
            teacher,
            dtype=teacher_dtype,
            device=device,
            attn_implementation=attn_implementation,
            revision=teacher_revision,
            trust_remote_code=trust_remote_code,
        ).requires_grad_(False)
        teacher_report = check_architecture(
            teacher_model.config, type(teacher_model), supports_softcap=supports_softcap
        )
    spec = resolve_pair(student_model, teacher_model, student_tokenizer, teacher_tokenizer)
    logger.info("vocabulary %d, stop ids %s, padding id %d", spec.vocab_size, spec.stop_token_ids, spec.pad_token_id)
    for note in spec.notes:
        logger.info("%s", note)
    for side, report in (("student", student_report), ("teacher", teacher_report)):
        if report is not None and not report.verified:
            logger.warning(
                "%s: model type %r passes the architecture check but is not among the verified types",
                side,
                report.model_type,
            )
    return ModelPair(student_model, teacher_model, student_tokenizer, spec, student_report, teacher_report)


def _load_plain(name: str, dtype: torch.dtype | str, revision: str | None, options: dict[str, Any]) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    given = {key: value for key, value in options.items() if value is not None}

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, revision=revision, use_safetensors=True, output_loading_info=True, **given
        )

    model, info = _attempt(f"a causal language model from {name!r}", load)
    absent = sorted(info["missing_keys"]) + sorted(str(entry[0]) for entry in info["mismatched_keys"])
    if absent:
        raise ModelLoadError(
            f"the checkpoint {name!r} lacks {len(absent)} weights of {type(model).__name__} or has them in another "
            f"shape (first: {absent[0]}); expected a complete checkpoint, so save the model again"
        )
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ModelLoadError(
            f"{name!r} is a PEFT adapter on the hub; download it to a folder and give that folder, so that it is merged"
        )
    loaded: PreTrainedModel = model
    return loaded


def _load_adapter(name: str, dtype: torch.dtype | str, options: dict[str, Any]) -> PreTrainedModel:
    try:
        from peft import PeftConfig, PeftModel
    except ImportError as error:
        raise ModelLoadError(f"{name!r} is a PEFT adapter, and peft is not installed; install peft") from error

    _check_weights(name, "adapter_config.json", "adapter weights")
    config = _attempt(f"the adapter config of {name!r}", lambda: PeftConfig.from_pretrained(name))
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        raise ModelLoadError(f"the adapter {name!r} is of type {kind}, expected LORA; merge it yourself and give that")
    if not config.base_model_name_or_path:
        raise ModelLoadError(f"the adapter {name!r} names no base model; set base_model_name_or_path in its config")
    base_name = config.base_model_name_or_path
    _check_folder(base_name)
    if Path(base_name).is_dir():
        _check_weights(base_name, "config.json", "weights")
    base = _load_plain(base_name, "auto", getattr(config, "revision", None), options)
    final = base.dtype if isinstance(dtype, str) else dtype

    def merge() -> Any:
        with warnings.catch_warnings():
            # An adapter that lacks weights is only warned about by the library.
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            # peft reads a property that transformers is renaming.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
            return PeftModel.from_pretrained(base.float(), name, use_safetensors=True).merge_and_unload(safe_merge=True)

    merged: PreTrainedModel = _attempt(f"the adapter {name!r} on {base_name!r}", merge)
    return merged.to(dtype=final)  # type: ignore[call-arg]


def _resolve_dtype(dtype: torch.dtype | str) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"dtype is {dtype!r}, expected 'auto' or a floating dtype such as 'float32' or 'bfloat16'")
    return found


def _check_folder(name: str) -> None:
    """Refuse what is written as a path and is no folder, before it is taken for a hub name."""
    path = Path(name)
    if name and path.is_dir():
        if not any(path.iterdir()):
            raise ModelLoadError(f"the checkpoint folder {name!r} is empty; expected a Hugging Face model folder")
        return
    looks_like_path = name.startswith((".", "~", "/", os.sep)) or name.count("/") > 1
    if not name or path.exists() or looks_like_path:
        raise ModelLoadError(
            f"there is no checkpoint folder {name!r}; expected a Hugging Face model folder or a hub name"
        )


def _check_weights(name: str, config_name: str, what: str) -> None:
    folder = Path(name)
    if not (folder / config_name).is_file():
        raise ModelLoadError(f"the checkpoint folder {name!r} has no {config_name}; expected a Hugging Face folder")
    if not list(folder.glob("*.safetensors")):
        pickled = sorted(path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in folder.glob(suffix))
        found = f" (found {pickled[0]}, which is not read, since it is a pickle)" if pickled else ""
        raise ModelLoadError(
            f"the checkpoint folder {name!r} has no {what} as .safetensors{found}; save the model with safetensors"
        )


def _attempt(what: str, load: Callable[[], _T]) -> _T:
    """Run a loader of the library; whatever it makes of a bad checkpoint becomes one sentence."""
    try:
        return load()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the libraries raise many unrelated types for a malformed checkpoint
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ModelLoadError(
            f"could not load {what} ({type(error).__name__}: {reason}); expected a complete Hugging Face checkpoint "
            "with safetensors weights"
        ) from error
