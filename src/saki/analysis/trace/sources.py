"""Which rollout files a trace page is made from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from saki.analysis.rollout_files import by_step, spaced
from saki.rollout import RolloutFacts, read_rollout_facts

MAX_TOKENS = 1_000_000
"""Most tokens of a page unless said otherwise: what a browser opens at once."""


def choose_files(
    files: Sequence[Path],
    *,
    max_tokens: int = MAX_TOKENS,
    steps: Collection[int] | None = None,
    limit: int | None = None,
    max_files: int | None = None,
) -> tuple[list[Path], list[str]]:
    """The files that a page has room for: all of them, or as many as fit, evenly spaced; a step's ranks stay together.

    Args:
        files: Rollout files in the order of a run.
        max_tokens: Room, response tokens.
        steps: Take the files of these steps only; None for every step.
        limit: Most completions that are taken of a file; None for all.
        max_files: Most steps; None for as many as fit.

    Returns:
        The files, and a sentence if some were left out for want of room.

    Raises:
        ValueError: If no file is of such a step, or if not even one file fits.
        RolloutFileError: If a file is missing, damaged, empty or of another schema version.
    """
    read = {path: read_rollout_facts(path) for path in files}
    if steps is not None:
        there = {path: footer.facts.get("step") for path, footer in read.items()}
        missing = sorted(set(steps) - {int(step) for step in there.values() if step is not None and step.isdecimal()})
        if missing:
            raise ValueError(f"no rollout file is of step {', '.join(map(str, missing))}; leave out what is not there")
        files = [path for path in files if there[path] in {str(step) for step in steps}]
    sizes = {path: _num_tokens(read[path], limit) for path in files}
    groups = by_step(files)
    for count in range(min(len(groups), max_files or len(groups)), 0, -1):
        chosen = [path for group in spaced(groups, count) for path in group]
        if sum(sizes[path] for path in chosen) <= max_tokens:
            what = "rollout files are" if len(groups) == len(files) else "steps' rollouts, of all ranks, are"
            note = f"{count} of {len(groups)} {what} here, evenly spaced; saki view shows others by --steps."
            return chosen, [note] if count < len(groups) else []
    least = sum(sizes[path] for path in groups[0])
    raise ValueError(
        f"{_name(groups[0])} alone holds {least} tokens, more than max_tokens = {max_tokens}; "
        "raise max_tokens, or take fewer completions with limit"
    )


def _num_tokens(footer: RolloutFacts, limit: int | None) -> int:
    """Tokens that a file brings to the page; where only some rows are taken, by the mean length of all."""
    share = 1.0 if limit is None else min(1.0, limit / max(footer.num_rows, 1))
    return round(footer.num_tokens * share)


def _name(group: Sequence[Path]) -> str:
    return str(group[0]) if len(group) == 1 else f"the step of {group[0]} with its {len(group)} ranks"
