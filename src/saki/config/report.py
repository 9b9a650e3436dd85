"""What ``saki report`` takes."""

from __future__ import annotations

from dataclasses import dataclass

from saki.config.commands import option
from saki.config.sources import check_model_name


@dataclass
class ReportArguments:
    """``saki report RUN ...``."""

    out: str | None = option(
        None, "The page to write (-o): by default report.html in the folder, comparison.html above several runs."
    )
    model: str | None = option(None, "Whose tokenizer: a folder, a hub name, or lab/student; by default the run's.")
    json: bool = option(False, "End with one line of JSON.")
    traceback: bool = option(False, "Show the traceback of a user error as well.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without reading anything."""
        if self.out is not None and not self.out.strip():
            raise ValueError("out is empty; give a file to write to, or leave --out away")
        if self.model is not None:
            check_model_name("model", self.model)
