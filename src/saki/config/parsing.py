"""YAML file and command line into dataclasses; unknown keys are refused with the nearest valid one."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import functools
import io
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser, TrainingArguments

from saki.files import write_text
from saki.types.exact import did_you_mean, unknown_option

FACT_KEYS = ("commit", "versions")
"""What a resolved configuration records beside options; ignored when it is read again."""
_OF_ONE_CALL = ("out", "json", "traceback")  # where a command writes and how it speaks: not for another that reads it


_COMPLAINTS = (
    (re.compile(r"invalid int value: (.*)"), "must be a whole number, got {}"),
    (re.compile(r"invalid float value: (.*)"), "must be a number, got {}"),
    (re.compile(r"Truthy value expected: got (.*?) but expected one of .*"), "must be true or false, got {!r}"),
    (re.compile(r"expected (?:one|at least one) argument()"), "needs a value{}; write it as --key value"),
)
"""What argparse says after ``argument --key:``, and what a user is told."""


class UsageError(ValueError):
    """The command line or the configuration file cannot be understood."""


class CommandParser(HfArgumentParser):
    """Parses ``[CONFIG.yaml] --key value ...`` into dataclasses.

    Field names are the keys, with underscores or dashes; ``null`` is none where an option may be that. Values of the
    command line win over the file, the file over the defaults. ``--help`` lists the fields of saki; those that come
    from the library's ``TrainingArguments`` are accepted without being listed.

    Args:
        kinds: Dataclasses to fill; their field names must not overlap.
        prog: Command as typed, for ``--help``.
        summary: What the command does.
        example: A command line to copy.
        set_aside: Dataclasses of another command whose configuration files are taken as well; what this command has no
            field for is kept in the attribute of the same name and left unread, and where such a file says nothing
            the other command's defaults hold.

    Attributes:
        set_aside: Keys and values of the file that belong to the other command alone.
    """

    def __init__(
        self, kinds: Sequence[Any], prog: str, summary: str, example: str, set_aside: Sequence[Any] = ()
    ) -> None:
        super().__init__(
            list(kinds),
            prog=prog,
            description=summary,
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        self._hide_library_fields(kinds)
        self.keys = tuple(field.name for kind in kinds for field in dataclasses.fields(kind) if field.init)
        self._hints = {name: hint for kind in kinds for name, hint in typing.get_type_hints(kind).items()}
        self._elsewhere = {
            field.name: field.default for kind in set_aside for field in dataclasses.fields(kind) if field.init
        }
        self.set_aside: dict[str, Any] = {}
        self.left_aside: list[str] = []
        for action in self._actions:
            if action.type is not None and action.nargs != "+" and type(None) in _members(self._hints[action.dest]):
                action.type = _or_null(action.type)  # type: ignore[arg-type]
                action.choices = None if action.choices is None else [*action.choices, None]
        self._file: Path | None = None
        self._file_keys: set[str] = set()

    def _hide_library_fields(self, kinds: Sequence[Any]) -> None:
        library = {field.name for field in dataclasses.fields(TrainingArguments)}
        own = {name for kind in kinds for base in kind.__mro__[:1] for name in getattr(base, "__annotations__", {})}
        for action in self._actions:
            if action.dest in library - own or action.dest == "output_dir":
                action.help = argparse.SUPPRESS
            elif action.help:
                action.help = action.help.replace("%", "%%").replace("%%(", "%(")

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving; argparse's complaints in words of their own."""
        found = re.match(r"argument --([\w-]+)[^:]*: (.*)", message, flags=re.DOTALL)
        if found is None:
            raise UsageError(message)
        key, complaint = found[1].replace("-", "_"), found[2]
        if choice := re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", complaint, flags=re.DOTALL):
            choices = [word.strip(" '") for word in choice[2].split(",")]
            hint = did_you_mean(choice[1], choices, f"choose one of {', '.join(choices)}")
            complaint = f"got {choice[1]!r}; {hint}"
        for pattern, words in _COMPLAINTS:
            if matched := pattern.fullmatch(complaint):
                complaint = words.format(*matched.groups())
                break
        where = f" (in {self._file})" if key in self._file_keys else ""
        raise UsageError(f"{key} {complaint}{where}")

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
        words = self._normalised(words)
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

    def _normalised(self, words: list[str]) -> list[str]:
        """Keys with underscores, each valid and given once; a negative number stays the value of its key."""
        result: list[str] = []
        given: set[str] = set()
        for word in words:
            if not word.startswith("--"):
                if _is_negative_number(word) and result and result[-1].startswith("--") and "=" not in result[-1]:
                    result[-1] += "=" + word
                else:
                    result.append(word)
                continue
            key, equals, value = word[2:].partition("=")
            key = key.replace("-", "_")
            self._check_key(key, "the command line")
            plain = key.removeprefix("no_") if key not in self.keys else key
            if plain in given:
                raise UsageError(f"{plain} is given twice on the command line; keep one of the two")
            given.add(plain)
            result.append("--" + key + equals + value)
        self._file_keys -= given
        return result

    def _take_file(self, path: Path) -> None:
        values: dict[str, Any] = {}
        for written, value in read_yaml(path).items():
            key = written.replace("-", "_")
            if key in FACT_KEYS:
                continue
            if key in self._elsewhere and key not in self.keys:
                self.set_aside[key] = value
                continue
            if key not in self.keys:
                raise UsageError(unknown_option(key, self.keys, str(path)))
            if key in values:
                raise UsageError(f"{path} gives {key} twice, with dashes and with underscores; keep one of the two")
            values[key] = self._file_value(key, _plain(value), path)
        if self.set_aside:
            others = {key: default for key, default in self._elsewhere.items() if key in self.keys}
            values = {**{key: each for key, each in others.items() if each is not dataclasses.MISSING}, **values}
            self.left_aside = sorted(set(values) & set(_OF_ONE_CALL))
            values = {key: each for key, each in values.items() if key not in _OF_ONE_CALL}
        self.set_defaults(**values)
        self._file, self._file_keys = path, set(values)

    def _file_value(self, key: str, value: Any, path: Path) -> Any:
        """A value that argparse reads as it reads the command line, so that both have the same types."""
        kinds = set(_members(self._hints[key]))
        if value is None:
            if type(None) not in kinds and self.get_default(key) is not None:
                raise UsageError(f"{key} in {path} is empty; give it a value, or leave the line out for the default")
            return None
        if isinstance(value, (dict, list)):
            if type(value) not in kinds:
                raise UsageError(f"{key} in {path} must be a single value, got {value}")
            return value
        if isinstance(value, bool) and bool not in kinds and str in kinds:
            raise UsageError(
                f"{key} in {path} must be text, but YAML reads a bare yes, no, on or off as a bool; quote it"
            )
        return value if list in kinds and str not in kinds else str(value)

    def typed(self, key: str, value: Any, path: Path) -> Any:
        """A value out of a file in the type of its field, as the command line reads it.

        Args:
            key: A field.
            value: What YAML made of it.
            path: The file, for the sentence that refuses it.

        Raises:
            UsageError: If the field takes no such value.
        """
        self._file, self._file_keys = path, {key}
        plain = self._file_value(key, _plain(value), path)
        if not isinstance(plain, str):
            return plain
        try:
            return self._get_value(self._option_string_actions[f"--{key}"], plain)
        except argparse.ArgumentError as error:
            self.error(str(error))

    def _check_key(self, key: str, where: str) -> None:
        if key in ("help", "h") or f"--{key}" in self._option_string_actions:
            return
        raise UsageError(unknown_option(key, self.keys, where))


def _members(hint: Any) -> list[type]:
    """The plain types in a hint: ``list[str] | None`` has list and NoneType."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [typing.get_origin(part) or part for part in parts]


def _or_null(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Reads ``null`` as None, as YAML does; the rest as ``kind``, under its name in argparse's complaints."""

    @functools.wraps(kind)
    def read(text: str) -> Any:
        return None if text == "null" else kind(text)

    return read


def _is_negative_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return word.startswith("-")


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML's loader keeps the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key_node.value!r} is given twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file.

    Raises:
        UsageError: If the file is missing, no text, no YAML, gives a key twice, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise UsageError(f"there is no configuration file {path}; options are written as --key value") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8; give a YAML file of 'key: value' lines") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        values = yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise UsageError(f"{path}{line} is not valid YAML: {error.problem}; mend that line") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}; mend it") from error
    if values is None:
        raise UsageError(f"{path} holds nothing; expected 'key: value' lines")
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold 'key: value' lines, got a {type(values).__name__}")
    for key in values:
        if not isinstance(key, str):
            raise UsageError(f"{path} has the key {key!r}, a {type(key).__name__}; keys are names of options")
    return values


def write_resolved(path: Path, *parts: Any, facts: Mapping[str, Any] | None = None) -> None:
    """Write every field of the dataclasses as one flat YAML mapping, which the command takes again.

    ``resume`` stays out: it says how this call began, and a run that takes the file begins by itself.

    Args:
        path: ``config.resolved.yaml``.
        *parts: Dataclass instances; later ones do not repeat keys of earlier ones.
        facts: Values of :data:`FACT_KEYS`.
    """
    values: dict[str, Any] = {name: _plain(value) for name, value in (facts or {}).items()}
    for part in parts:
        for field in dataclasses.fields(part):
            left_out = field.name.endswith("_token") or field.name == "resume"
            if field.init and not left_out and field.name not in values:
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
