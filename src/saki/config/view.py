"""What ``saki view`` takes."""

from __future__ import annotations

from dataclasses import dataclass

from saki.analysis.trace import MAX_TOKENS
from saki.config.commands import check_counts, option
from saki.config.sources import check_model_name, check_prompts_name


@dataclass
class ViewArguments:
    """``saki view ROLLOUTS ...``."""

    out: str | None = option(
        None, "The page to write (-o): by default trace.html beside the rollouts, traces.html above several."
    )
    model: str | None = option(None, "Whose tokenizer: a folder, a hub name, or lab/student; by default the run's.")
    steps: str | None = option(None, "Steps to show, separated by commas; by default all that there is room for.")
    limit: int | None = option(None, "Completions of each file, evenly spaced; by default all.")
    max_tokens: int = option(MAX_TOKENS, "Room of the page, response tokens; beyond it files are left out evenly.")
    answers: str | None = option(None, "Prompt set with answers to grade against: lab, a file, a folder, a hub name.")
    samples: str | None = option(
        None, "Parquet file that says what is correct: of saki eval, or with prompt_key, sample_index and correct."
    )
    json: bool = option(False, "End with one line of JSON.")
    traceback: bool = option(False, "Show the traceback of a user error as well.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without reading anything."""
        if self.out is not None and not self.out.strip():
            raise ValueError("out is empty; give a file to write to, or leave --out away")
        if self.model is not None:
            check_model_name("model", self.model)
        if self.answers is not None:
            check_prompts_name("answers", self.answers)
        if self.answers is not None and self.samples is not None:
            raise ValueError("answers and samples both say what is correct; give one of the two")
        check_counts(self, max_tokens=1)
        if self.limit is not None:
            check_counts(self, limit=1)
        _ = self.step_numbers

    @property
    def step_numbers(self) -> set[int] | None:
        """The steps to show, or None for all.

        Raises:
            ValueError: If they are no whole numbers.
        """
        if self.steps is None:
            return None
        words = [word.strip() for word in self.steps.split(",")]
        if not all(word.isdecimal() for word in words):
            raise ValueError(f"steps must be whole numbers separated by commas, got {self.steps!r}")
        return {int(word) for word in words}
