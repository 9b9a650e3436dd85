"""The model card: what a final model was made of, beside its weights."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers

import saki
from saki.files import write_text

CARD_FILE = "README.md"
NOT_RECORDED = "not recorded"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass
class RunNames:
    """What only the caller of a trainer knows of its run.

    Attributes:
        model: The initial model: a hub name, a folder, or one of the lab.
        teacher: The teacher, likewise; None where there is none.
        dataset: The prompts: a hub name, a file, or lab.
        commit: Commit of the code.
        figures: Results to show beside those that the trainer logged.
    """

    model: str | None = None
    teacher: str | None = None
    dataset: str | None = None
    commit: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelCard:
    """The facts of a card.

    Attributes:
        title: Name of the model.
        summary: What was done, in a sentence or two.
        tags: Tags for the hub.
        names: Models, data and commit.
        settings: Settings by their names.
        figures: Results by their names.
    """

    title: str
    summary: str
    tags: Sequence[str]
    names: RunNames
    settings: Mapping[str, Any]
    figures: Mapping[str, Any]

    def text(self) -> str:
        """The card as Markdown, with the metadata that the hub reads.

        A licence is left to the user: it depends on those of the initial model, the teacher and the data.
        """
        facts = {"Initial model": self.names.model or NOT_RECORDED}
        if self.names.teacher:
            facts["Teacher"] = self.names.teacher
        facts["Prompts"] = self.names.dataset or NOT_RECORDED
        facts["Commit"] = self.names.commit or NOT_RECORDED
        facts["Versions"] = ", ".join(f"{name} {number}" for name, number in versions().items())
        figures = {**self.figures, **self.names.figures}
        return "\n".join(
            [
                *self._metadata(),
                f"# {self.title}",
                "",
                self.summary,
                "",
                *_table("Run", "", facts),
                *_table("Setting", "Value", self.settings),
                *(_table("Figure", "Value", figures) if figures else []),
                "## Licence",
                "",
                "Not stated yet: add `license:` to the head of this file. The licences of the initial model, of the "
                "teacher and of the data all bear on it.",
                "",
            ]
        )

    def _metadata(self) -> list[str]:
        lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
        if is_hub_name(self.names.model):
            lines += [f"base_model: {self.names.model}", "base_model_relation: finetune"]
        if is_hub_name(self.names.dataset):
            lines += ["datasets:", f"- {self.names.dataset}"]
        lines += ["tags:", *(f"- {tag}" for tag in self.tags)]
        return [*lines, "# license: to be stated by whoever publishes this model", "---", ""]


def write_card(folder: Path, card: ModelCard) -> Path:
    """Write ``README.md`` beside a model's weights, whole or not at all.

    Raises:
        DiskFullError: If there is no room.
    """
    write_text(folder / CARD_FILE, card.text())
    return folder / CARD_FILE


def is_hub_name(name: str | None) -> bool:
    """Whether a name is ``owner/name`` and no folder, file or part of the lab."""
    return bool(name and _HUB_NAME.fullmatch(name) and not name.startswith("lab/") and not Path(name).exists())


def versions() -> dict[str, str]:
    """Versions of what made the model."""
    found = {
        "saki": saki.__version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    with suppress(PackageNotFoundError):
        found["trl"] = version("trl")
    return found


def _table(left: str, right: str, values: Mapping[str, Any]) -> list[str]:
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return [f"| {left} | {right} |", "| --- | --- |", *rows, ""]


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())
