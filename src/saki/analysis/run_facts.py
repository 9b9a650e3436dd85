"""What was run, read from a run folder's resolved configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

NOT_RECORDED = "not recorded"

_IDENTITY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Method", ("method", "method.name")),
    ("Student", ("model", "student", "student_model", "model_name_or_path", "model.name", "model.path")),
    (
        "Teacher",
        ("teacher_model", "teacher", "teacher_model.name", "teacher_model.path", "teacher.name", "teacher.path"),
    ),
    ("Commit", ("commit", "git_commit")),
)
_SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Prompts from", ("dataset",)),
    ("Device", ("device",)),
    ("Seed", ("seed",)),
    ("Steps", ("max_steps",)),
    ("Learning rate", ("learning_rate",)),
    ("Prompts a step", ("prompts_per_step",)),
    ("Completions a prompt", ("num_generations",)),
    ("Longest completion, tokens", ("max_completion_length",)),
    ("Trust-region radius, nats", ("trust_region_radius",)),
    ("Radius schedule", ("radius_schedule",)),
    ("Radius annealed over, steps", ("radius_anneal_steps",)),
    ("Proposals a wave", ("block_size",)),
)
_SECRET = re.compile(r"(hub_token|hf_token|access_token|auth_token|api_key|secret|password)$", re.IGNORECASE)


@dataclass(frozen=True)
class RunFacts:
    """What was run.

    Attributes:
        method: Name of the method, or None where it is not recorded.
        pairs: Names and values to show, in order; what every run should record and this one does not is
            shown as "not recorded".
        text: The whole configuration as text, values of secrets hidden.
    """

    method: str | None
    pairs: tuple[tuple[str, str], ...]
    text: str


def read_run_facts(path: Path) -> RunFacts | None:
    """Read ``config.resolved.yaml``. A fact is found by its name, at whatever depth it stands.

    Args:
        path: The file.

    Returns:
        The facts, or None where there is no such file.

    Raises:
        ValueError: If the file is not YAML or is not a mapping.
    """
    flat = read_settings(path)
    if flat is None:
        return None
    identity = [(label, _find(flat, names)) for label, names in _IDENTITY]
    versions = ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in flat.items() if "versions." in name)
    settings = [(label, _find(flat, names)) for label, names in _SETTINGS]
    return RunFacts(
        method=identity[0][1],
        pairs=(
            *((label, value or NOT_RECORDED) for label, value in identity),
            ("Versions", versions or NOT_RECORDED),
            *((label, value) for label, value in settings if value is not None),
        ),
        text="\n".join(f"{name}: {value}" for name, value in flat.items()),
    )


def read_settings(path: Path) -> dict[str, str] | None:
    """Dotted names and values of all settings in ``config.resolved.yaml``, values of secrets hidden.

    Args:
        path: The file.

    Returns:
        The settings, or None where there is no such file.

    Raises:
        ValueError: If the file is not YAML or is not a mapping.
    """
    if not path.is_file():
        return None
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not readable YAML ({reason}); restore the file that the run wrote") from error
    if not isinstance(config, Mapping):
        raise ValueError(
            f"{path} holds {type(config).__name__}, expected a mapping; restore the file that the run wrote"
        )
    return dict(_flatten(config))


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values of the leaves."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _flatten(each, f"{name}.{key}" if name else str(key))
    elif _SECRET.search(name) and value is not None:
        yield name, "(hidden)"
    else:
        yield name, str(value)


def _find(flat: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The value whose dotted name ends in one of ``names``: earlier names first, then the least deep."""
    for wanted in names:
        found = [name for name in flat if name == wanted or name.endswith(f".{wanted}")]
        values = [flat[name] for name in sorted(found, key=lambda name: name.count(".")) if flat[name] != "None"]
        if values:
            return values[0]
    return None
