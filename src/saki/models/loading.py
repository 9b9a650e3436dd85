"""Load tokenizers, causal language models and pairs of them from plain Hugging Face folders or hub names."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from saki.models.architecture import ArchitectureReport, check_architecture
from saki.models.casting import cast_weights
from saki.models.checkpoints import ModelLoadError, attempt, check_folder, check_tokenizer_files, check_weights
from saki.models.compatibility import PairSpec, compare_tokenizers, resolve_pair

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


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

    name = _as_name(name_or_path)
    check_folder(name)
    check_tokenizer_files(name)
    return attempt(
        f"a tokenizer from {name!r}",
        lambda: AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code),
        name,
        "a tokenizer in the form of Hugging Face (tokenizer.json)",
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
    name = _as_name(name_or_path)
    resolved = _resolve_dtype(dtype)
    check_folder(name)
    options = {"attn_implementation": attn_implementation, "trust_remote_code": trust_remote_code}
    if Path(name, "adapter_config.json").is_file():
        model = _load_adapter(name, resolved, options)
    else:
        if Path(name).is_dir():
            check_weights(name, "config.json", "weights")
        model = _load_plain(name, resolved, revision, options)
    return model.to(device).eval()  # type: ignore[arg-type]


def load_teacher(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "cpu",
    runs_on: torch.device | str | None = None,
    attn_implementation: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Load a teacher: as :func:`load_causal_lm`, without gradients, in a dtype that its device multiplies fast.

    Args:
        name_or_path: Folder or hub name.
        dtype: Dtype of the weights. ``"auto"`` is the checkpoint's own on an accelerator. On a CPU it is float32 at
            least: products of 16-bit numbers are slower there (ten times and more where the processor has no
            instructions for them) for half of the memory; give the dtype to have them nevertheless.
        device: Where to put the model.
        runs_on: Where it will run if it is moved later, by default ``device``.
        attn_implementation: Attention implementation of transformers, by default the library's choice.
        revision: Hub branch, tag or commit.
        trust_remote_code: Whether to run code that comes with the checkpoint.

    Raises:
        ModelLoadError: As :func:`load_causal_lm`.
    """
    model = load_causal_lm(
        name_or_path,
        dtype=dtype,
        device=device,
        attn_implementation=attn_implementation,
        revision=revision,
        trust_remote_code=trust_remote_code,
    ).requires_grad_(False)
    on_cpu = torch.device(device if runs_on is None else runs_on).type == "cpu"
    if dtype == "auto" and on_cpu and model.dtype.itemsize < torch.float32.itemsize:
        logger.info("teacher in float32 (stored in %s): 16-bit products are slow on a CPU", model.dtype)
        model = model.float()
    return model


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
        teacher_dtype: Dtype of the teacher, or ``"auto"``; see :func:`load_teacher`.
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
    teacher_tokenizer = None
    if teacher is not None:
        teacher_tokenizer = load_tokenizer(teacher, revision=teacher_revision, trust_remote_code=trust_remote_code)
        compare_tokenizers(student_tokenizer, teacher_tokenizer)
    student_model = load_causal_lm(
        student,
        dtype=student_dtype,
        device=device,
        attn_implementation=attn_implementation,
        revision=student_revision,
        trust_remote_code=trust_remote_code,
    )
    student_report = check_architecture(student_model.config, type(student_model), supports_softcap=supports_softcap)
    teacher_model, teacher_report = None, None
    if teacher is not None:
        teacher_model = load_teacher(
            teacher,
            dtype=teacher_dtype,
            device=device,
            attn_implementation=attn_implementation,
            revision=teacher_revision,
            trust_remote_code=trust_remote_code,
        )
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
    _check_type(name, revision, bool(options.get("trust_remote_code")))

    def load() -> Any:
        # Weights of another shape are reported like missing ones below, instead of by a table on the screen.
        return AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            revision=revision,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **given,
        )

    with _without_reports():
        model, info = attempt(f"a causal language model from {name!r}", load, name)
    absent = sorted(info["missing_keys"]) + sorted(
        f"{key}, {tuple(there)} where the config says {tuple(wanted)}" for key, there, wanted in info["mismatched_keys"]
    )
    if absent:
        raise ModelLoadError(
            f"the checkpoint {name!r} lacks {len(absent)} weights of {type(model).__name__} or has them in another "
            f"shape (first: {absent[0]}); expected a complete checkpoint, so save the model again"
        )
    if info["unexpected_keys"]:
        surplus = sorted(info["unexpected_keys"])
        logger.warning(
            "%s: %d weights of the checkpoint have no place in %s and are left out (first: %s)",
            name,
            len(surplus),
            type(model).__name__,
            surplus[0],
        )
    _refuse_non_finite(name, model)
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
    from transformers import GenerationConfig

    check_weights(name, "adapter_config.json", "adapter weights")
    config = attempt(f"the adapter config of {name!r}", lambda: PeftConfig.from_pretrained(name), name)
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        raise ModelLoadError(f"the adapter {name!r} is of type {kind}, expected LORA; merge it yourself and give that")
    if not config.base_model_name_or_path:
        raise ModelLoadError(f"the adapter {name!r} names no base model; set base_model_name_or_path in its config")
    base_name = config.base_model_name_or_path
    try:
        check_folder(base_name)
        if Path(base_name).is_dir():
            check_weights(base_name, "config.json", "weights")
        base = _load_plain(base_name, "auto", getattr(config, "revision", None), options)
    except ModelLoadError as error:
        raise ModelLoadError(f"the base model of the adapter {name!r} cannot be loaded: {error}") from error
    final = base.dtype if isinstance(dtype, str) else dtype

    def merge() -> Any:
        with warnings.catch_warnings():
            # An adapter that lacks weights is only warned about by the library.
            warnings.filterwarnings("error", message=".*missing adapter keys.*")
            # peft reads a property that transformers is renaming.
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
            return PeftModel.from_pretrained(base.float(), name, use_safetensors=True).merge_and_unload(safe_merge=True)

    merged: PreTrainedModel = attempt(f"the adapter {name!r} on {base_name!r}", merge, name)
    cast_weights(merged, final)
    with suppress(OSError):  # where training left none, the base model's ends stay
        ends = GenerationConfig.from_pretrained(name).eos_token_id
        if ends is not None and merged.generation_config is not None:
            merged.generation_config.eos_token_id = ends
    return merged.requires_grad_(True)  # PEFT froze the base


def _resolve_dtype(dtype: torch.dtype | str) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"dtype is {dtype!r}, expected 'auto' or a floating dtype such as 'float32' or 'bfloat16'")
    return found


def _as_name(name_or_path: str | os.PathLike[str]) -> str:
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ValueError(f"a checkpoint is named by a folder or a hub name, got a {type(name_or_path).__name__}")
    return os.fspath(name_or_path)


def _check_type(name: str, revision: str | None, trust_remote_code: bool) -> None:
    """Refuse a model type that no engine runs, by its config alone, before any weight is read."""
    from transformers import AutoConfig

    config = attempt(
        f"the config of {name!r}",
        lambda: AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code),
        name,
    )
    if type(config).__module__.startswith("transformers."):
        # Whether a soft cap can be honoured is the caller's to say, later.
        check_architecture(config, supports_softcap=True)


@contextmanager
def _without_reports() -> Iterator[None]:
    """The library's table of missing and surplus weights stays off the screen; one sentence says it instead."""
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(level)


def _refuse_non_finite(name: str, model: Any) -> None:
    broken = [
        key
        for key, weight in model.named_parameters()
        if weight.is_floating_point() and weight.element_size() > 1 and not bool(torch.isfinite(weight).all())
    ]
    if broken:
        raise ModelLoadError(
            f"the checkpoint {name!r} holds NaN or infinite numbers in {len(broken)} weights (first: {broken[0]}); "
            "its training diverged or the file is damaged, so take another checkpoint"
        )
