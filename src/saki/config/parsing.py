"""YAML file and command line into dataclasses; unknown keys are refused with the nearest valid one."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import enum
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser, TrainingArguments

from saki.files import write_text

FACT_KEYS = ("commit", "versions")
"""What a resolved configuration records beside options; ignored when it is read again."""


class UsageError(ValueError):
    """The command line or the configuration file cannot be understood."""


class CommandParser(HfArgumentParser):
    """Parses ``[CONFIG.yaml] --key value ...`` into dataclasses.

    Field names are the keys, with underscores or dashes. Values of the command line win over the file, the file
    over the defaults. ``--help`` lists the fields of saki; those that come from the library's
    ``TrainingArguments`` are accepted without being listed.

    Args:
        types: Dataclasses to fill; their field names must not overlap.
        prog: Command as typed, for ``--help``.
        summary: What the command does.
        example: A command line to copy.
    """

    def __init__(self, types: Sequence[Any], prog: str, summary: str, example: str) -> None:
        super().__init__(
            list(types),
            prog=prog,
            description=summary,
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        self._hide_library_fields(types)
        self.keys = tuple(field.name for kind in types for field in dataclasses.fields(kind) if field.init)

    def _hide_library_fields(self, types: Sequence[Any]) -> None:
        library = {field.name for field in dataclasses.fields(TrainingArguments)}
        own = {name for kind in types for base in kind.__mro__[:1] for name in getattr(base, "__annotations__", {})}
        for action in self._actions:
            if action.dest in library - own or action.dest == "output_dir":
                action.help = argparse.SUPPRESS
            elif action.help:
                action.help = action.help.replace("%", "%%").replace("%%(", "%(")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving."""
        raise UsageError(message)

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Parse a command line.

        Args:
            argv: Words after the command, the YAML file first if there is one.

        Returns:
            One instance per dataclass.

        Raises:
            UsageError: If a key is unknown, a value has the wrong type, or the file is not a YAML mapping.
            ValueError: If a dataclass refuses its values.
        """
        words = list(argv)
        if words and not words[0].startswith("-"):
            self._take_file(Path(words.pop(0)))
        for index, word in enumerate(words):
            if word.startswith("--"):
                key, equals, value = word[2:].partition("=")
                self._check_key(key.replace("-", "_"), "command line")
                words[index] = "--" + key.replace("-", "_") + equals + value
        self._clear_required()
        with contextlib.redirect_stderr(io.StringIO()):
            *parsed, remaining = self.parse_args_into_dataclasses(
                words, look_for_args_file=False, return_remaining_strings=True
            )
        if remaining:
            raise UsageError(f"cannot understand {remaining[0]!r} on the command line; options are --key value")
        return tuple(parsed)

    def _clear_required(self) -> None:
        for action in self._actions:
            if action.required and self.get_default(action.dest) is not None:
                action.required = False

    def _take_file(self, path: Path) -> None:
        values = {key: value for key, value in read_yaml(path).items() if key not in FACT_KEYS}
        for key in values:
            self._check_key(key.replace("-", "_"), str(path))
        self.set_defaults(**{key.replace("-", "_"): _plain(value) for key, value in values.items()})

    def _check_key(self, key: str, where: str) -> None:
        if key in self.keys or key in ("help", "h") or (key.startswith("no_") and key[3:] in self.keys):
            return
        nearest = difflib.get_close_matches(key, self.keys, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "see --help for the valid ones"
        raise UsageError(f"unknown key {key!r} in {where}; {hint}")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file.

    Raises:
        UsageError: If the file is missing or holds no mapping.
    """
    try:
        text = path.read_text()
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"there is no configuration file {path}; options are written as --key value") from None
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"{path} must hold 'key: value' lines, got {type(values).__name__}")
    return values


def write_resolved(path: Path, *parts: Any, facts: Mapping[str, Any] | None = None) -> None:
    """Write every field of the dataclasses as one flat YAML mapping, which the command takes again.

    Args:
        path: ``config.resolved.yaml``.
        *parts: Dataclass instances; later ones do not repeat keys of earlier ones.
        facts: Values of :data:`FACT_KEYS`.
    """
    values: dict[str, Any] = {name: _plain(value) for name, value in (facts or {}).items()}
    for part in parts:
        for field in dataclasses.fields(part):
            secret = field.name.endswith("_token")
            if field.init and not secret and field.name not in values:
                values[field.name] = _plain(getattr(part, field.name))
    write_text(path, yaml.safe_dump(values, sort_keys=True, allow_unicode=True))


def _plain(value: Any) -> Any:
    """Values that YAML writes and the parser takes: no enums, no paths, no objects."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str):
        return str(value)  # subclasses such as a version string, too
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)
