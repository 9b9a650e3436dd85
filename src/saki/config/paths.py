"""Command lines that name files and folders first: ``PATH ... --key value ...``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saki.config.parsing import CommandParser, UsageError


class PathsParser(CommandParser):
    """Parses ``PATH ... --key value ...``; ``-o`` is ``--out``.

    Args:
        kind: Dataclass of the options.
        prog: Command as typed, for ``--help``.
        summary: What the command does.
        example: A command line to copy.
        what: What the paths are, for the sentence that asks for them.
    """

    def __init__(self, kind: Any, prog: str, summary: str, example: str, what: str) -> None:
        super().__init__([kind], prog, summary, example)
        self._command, self._example, self._what = " ".join(prog.split()[:2]), example, what

    def parse(self, argv: Sequence[str]) -> tuple[tuple[Path, ...], Any]:
        """Parse a command line.

        Args:
            argv: Words after the command: files or folders first.

        Returns:
            The files and folders, and the options.

        Raises:
            UsageError: If an option is unknown or has the wrong type, or if there is no path.
            ValueError: If a value is refused.
        """
        words = ["--out" if word == "-o" else word for word in argv]
        count = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
        (args,) = super().parse(words[count:])
        if count == 0:
            raise UsageError(f"{self._command} needs {self._what} first, for example: {self._example}")
        return tuple(Path(word) for word in words[:count]), args
