"""What ``saki figures`` takes."""

from __future__ import annotations

from dataclasses import dataclass

from saki.config.commands import option


@dataclass
class FiguresArguments:
    """``saki figures SOURCE ...``."""

    out: str | None = option(None, "Folder to write to (-o): by default figures in the first source's folder.")
    method: str | None = option(None, "Arm of a study whose gains Figure 3 shows: by default saki, else the last arm.")
    reference: str | None = option(None, "Arm that it is compared with: by default the study's reference.")
    placement: str = option("random_tm", "Arm through which panel (c) of Figure 3 goes.")
    only: str | None = option(None, "Arms of learning curves and of Figure 4, separated by commas; by default all.")
    json: bool = option(False, "End with one line of JSON.")
    traceback: bool = option(False, "Show the traceback of a user error as well.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without reading anything."""
        if self.out is not None and not self.out.strip():
            raise ValueError("out is empty; give a folder to write to, or leave --out away")
        if self.only is not None and not self.labels:
            raise ValueError(f"only names no arm, got {self.only!r}; give labels separated by commas")

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The arms to draw, or None for all."""
        if self.only is None:
            return None
        return tuple(word.strip() for word in self.only.split(",") if word.strip())
