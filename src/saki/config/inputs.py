"""What the commands take that make a run's inputs: its prompts, its teacher and the lab's models."""

from __future__ import annotations

from dataclasses import dataclass

from saki import lab
from saki.config.commands import check_counts, option
from saki.config.sources import (
    DAPO_ON_THE_HUB,
    LAB_HALF_TEACHER,
    check_model_name,
    check_num_problems,
    check_prompts_name,
)
from saki.data.preparation import LANGUAGES
from saki.types import check_number
from saki.types.exact import did_you_mean


@dataclass
class DataArguments:
    """``saki data``."""

    source: str = option(
        DAPO_ON_THE_HUB, "Where from: a parquet, JSON-lines or CSV file, a folder, or a hub name; may come first."
    )
    config_name: str | None = option(None, "Configuration of a hub data set.")
    dataset_split: str | None = option(None, "Split of the data set.")
    revision: str | None = option(None, "Revision on the hub.")
    prompt_column: str = option("prompt", "Column with the prompts.")
    answer_column: str | None = option(None, "Column with the answers; by default answer or reward_model.ground_truth.")
    suffix: str | None = option(None, "Instruction to append to every prompt, with its own space or line break.")
    strip_suffix: str | None = option(None, "Instruction to remove first from prompts that end in it.")
    language: str = option("any", "any, or no_cjk to drop prompts with Chinese, Japanese or Korean letters.")
    deduplicate: bool = option(False, "Keep the first of equal prompts.")
    tokenizer: str | None = option(None, "Model that counts tokens: a folder, a hub name, or lab/student.")
    max_prompt_length: int | None = option(None, "Drop longer prompts (tokens, suffix and template included).")
    shuffle_seed: int | None = option(None, "Shuffle with this seed; by default the source's order stays.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        check_prompts_name("source", self.source)
        if self.language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, got {self.language!r}")
        if self.tokenizer is not None:
            check_model_name("tokenizer", self.tokenizer)
        if self.max_prompt_length is not None:
            check_counts(self, max_prompt_length=1)
            if self.tokenizer is None:
                raise ValueError("max_prompt_length counts tokens; give the model's --tokenizer as well")
        if self.shuffle_seed is not None:
            check_counts(self, shuffle_seed=0)


@dataclass
class TeacherArguments:
    """``saki teacher``."""

    model: str | None = option(None, "Model to train: a folder, a hub name, lab/half-teacher, ...")
    revision: str | None = option(None, "Revision of the model on the hub.")
    dataset: str | None = option(
        None, "Prompts with answers: a parquet, JSON-lines or CSV file, a folder, a hub name, or lab."
    )
    dataset_split: str | None = option(None, "Split of the data set.")
    reward: str | None = option(
        None,
        "Grader as package.module:function(completion, answer) -> bool; by default the lab's own, and math-verify for "
        "every other data set.",
    )
    grading_workers: int | None = option(
        None, "Processes that grade, for each rank; by default its share of the cores."
    )
    grading_seconds: float = option(6.0, "Seconds for grading one answer; what takes longer trains nothing.")
    resume: bool = option(False, "Go on from the last good checkpoint of --out.")
    num_problems: int = option(
        0, "With dataset lab: held-out problems a set for measuring the model before and after; 0 for none."
    )

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        if self.model is not None and self.model != LAB_HALF_TEACHER:
            check_model_name("model", self.model)
        if self.dataset is not None:
            check_prompts_name("dataset", self.dataset)
        check_counts(self, num_problems=0)
        check_num_problems("num_problems", self.num_problems)
        if self.grading_workers is not None:
            check_counts(self, grading_workers=1)
        check_number("grading_seconds", self.grading_seconds, least=0.1)


@dataclass
class LabBuildArguments:
    """``saki lab build``."""

    seed: int = option(0, "Seed of corpora and weights.")
    num_problems: int = option(100, "Problems per test set for the closing measurement.")
    models: str = option("all", f"What to build, joined by commas: {', '.join(lab.MODELS)}; or all.")

    def __post_init__(self) -> None:
        """Refuse what can be refused without loading anything."""
        check_counts(self, seed=0, num_problems=1)
        check_num_problems("num_problems", self.num_problems)
        for name in self.model_names:
            if name not in lab.MODELS:
                hint = did_you_mean(name, lab.MODELS, f"choose among {', '.join(lab.MODELS)}, or all")
                raise ValueError(f"unknown model {name!r} in models; {hint}")

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the models to build."""
        return lab.MODELS if self.models == "all" else tuple(name.strip() for name in self.models.split(","))
