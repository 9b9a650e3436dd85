"""What a checkpoint folder must hold, looked at before a library opens it; and one sentence when that fails."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")

_REASON_LENGTH = 240

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.*", "*.model", "*.tiktoken")


class ModelLoadError(ValueError):
    """A checkpoint is missing, incomplete or malformed."""


def check_folder(name: str) -> None:
    """Refuse what is written as a path and is no folder, before it is taken for a hub name.

    Raises:
        ModelLoadError: If there is no folder, if it is empty, or if one of its configs is no JSON object.
    """
    path = Path(name)
    if name and path.is_dir():
        if not any(path.iterdir()):
            raise ModelLoadError(f"the checkpoint folder {name!r} is empty; expected a Hugging Face model folder")
        for config in ("config.json", "generation_config.json", "adapter_config.json", "tokenizer_config.json"):
            if (path / config).is_file():
                _check_json(path / config)
        if not _is_checkpoint(path) and _is_checkpoint(path / "model"):
            raise ModelLoadError(f"{name!r} is the folder of a run, whose model is {str(path / 'model')!r}; give that")
        return
    if path.is_file():
        raise ModelLoadError(f"{name!r} is a file, expected a Hugging Face model folder; give the folder that holds it")
    looks_like_path = name.startswith((".", "~", "/", os.sep)) or name.count("/") > 1
    if not name or looks_like_path:
        raise ModelLoadError(
            f"there is no checkpoint folder {name!r}; expected a Hugging Face model folder or a hub name"
        )


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder has the config of a model or an adapter, or a tokenizer."""
    names = ("config.json", "adapter_config.json", *_TOKENIZER_FILES)
    return any(next(folder.glob(name), None) for name in names)


def check_weights(name: str, config_name: str, what: str) -> None:
    """Refuse a folder without its config or without safetensors.

    Raises:
        ModelLoadError: Naming what is missing.
    """
    folder = Path(name)
    if not (folder / config_name).is_file():
        raise ModelLoadError(f"the checkpoint folder {name!r} has no {config_name}; expected a Hugging Face folder")
    if not list(folder.glob("*.safetensors")):
        pickled = sorted(path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in folder.glob(suffix))
        found = f" (found {pickled[0]}, which is not read, since it is a pickle)" if pickled else ""
        raise ModelLoadError(
            f"the checkpoint folder {name!r} has no {what} as .safetensors{found}; save the model with safetensors"
        )


def check_tokenizer_files(name: str) -> None:
    """Refuse a folder without a tokenizer: the library would make one up from the model type.

    Raises:
        ModelLoadError: If no file of a tokenizer is there.
    """
    folder = Path(name)
    if folder.is_dir() and not any(next(folder.glob(pattern), None) for pattern in _TOKENIZER_FILES):
        raise ModelLoadError(
            f"the checkpoint folder {name!r} has no tokenizer (tokenizer.json); copy the files of its tokenizer there"
        )


def tokenizer_home(name: str) -> str:
    """Where the tokenizer of a model lies: with the base model for an adapter folder that brings none.

    Args:
        name: Folder or hub name of the model.
    """
    folder = Path(name)
    if any(next(folder.glob(pattern), None) for pattern in _TOKENIZER_FILES):
        return name
    config = folder / "adapter_config.json"
    base = _check_json(config).get("base_model_name_or_path") if config.is_file() else None
    return str(base) if base else name


def attempt(
    what: str,
    load: Callable[[], _T],
    name: str,
    expected: str = "a complete Hugging Face checkpoint with safetensors weights",
) -> _T:
    """Run a loader of a library; whatever it makes of a bad checkpoint becomes one sentence.

    Args:
        what: What is loaded.
        load: The loader.
        name: Folder or hub name.
        expected: What would have been right.

    Raises:
        ModelLoadError: If the loader fails for another reason than memory.
    """
    config_logger = logging.getLogger("transformers.configuration_utils")
    config_logger.addFilter(_is_no_guess)
    try:
        return load()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the libraries raise many unrelated types for a malformed checkpoint
        raise ModelLoadError(_sentence(what, error, name, expected)) from error
    finally:
        config_logger.removeFilter(_is_no_guess)


def _is_no_guess(record: logging.LogRecord) -> bool:
    """False for the library's guess at an unknown model type, which our error names."""
    return not record.getMessage().startswith("You are using a model of type")


def _sentence(what: str, error: Exception, name: str, expected: str) -> str:
    text = str(error)
    if "trust_remote_code" in text and "custom code" in text:
        return (
            f"{name!r} brings Python code of its own, which is not run without consent; read that code, then set "
            "trust_remote_code (--trust_remote_code), or take a model that the transformers library knows"
        )
    if "does not recognize this architecture" in text:
        kind = _stored(name).get("model_type")
        return f"{name!r} has model type {kind!r}, which this transformers does not know; take a decoder such as Qwen3"
    if type(error).__name__ == "SafetensorError":
        return f"a .safetensors file of {name!r} is damaged or cut short ({text}); copy or download it again"
    reason = f"{type(error).__name__}: {_shortened(text)}"
    if not Path(name).is_dir() and isinstance(error, OSError):
        return f"could not load {what} ({reason}); check the name and the connection, or give a folder"
    return f"could not load {what} ({reason}); expected {expected}"


def _shortened(text: str) -> str:
    """The first line of a report, or all of it where that line only announces what follows."""
    lines = text.strip().split("\n")
    reason = " ".join(text.split()) if lines[0].endswith(":") else lines[0]
    return reason[:_REASON_LENGTH].rstrip(". ")


def _stored(name: str) -> dict[str, Any]:
    path = Path(name, "config.json")
    return _check_json(path) if path.is_file() else {}


def _check_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelLoadError(f"{str(path)!r} is not valid JSON ({error}); copy or download the file again") from error
    if not isinstance(content, dict):
        raise ModelLoadError(
            f"{str(path)!r} holds a {type(content).__name__}, expected a JSON object; copy or download the file again"
        )
    return content
