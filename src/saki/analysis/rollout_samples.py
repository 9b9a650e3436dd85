"""The most corrected completions of a run, as text in which proposals and corrections stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from saki.analysis.page import link, missing, paragraph, section
from saki.analysis.rollout_files import by_step, rollout_files, spaced
from saki.rollout import RolloutFileError, read_rollout_facts

Decode = Callable[[list[int]], str]
"""Token ids to text."""
LinkTarget = Callable[[str, int], str]
"""Name of a rollout file and a row in it to an address."""

NUM_SAMPLES = 5
"""Samples shown."""
NUM_TOKENS = 600
"""Most tokens shown of a sample."""

_COLUMNS = ("prompt_ids", "completion_ids", "correction_mask", "proposal_ids")


@dataclass(frozen=True)
class CorrectedSample:
    """One completion with its corrections.

    Attributes:
        file: Name of the file that holds it.
        row: Its row there.
        prompt_ids: Prompt token ids; empty where the file does not have them.
        completion_ids: [t] committed token ids.
        proposal_ids: [t] the student's proposals.
        corrected: [t] True where the proposal was rejected.
    """

    file: str
    row: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    proposal_ids: tuple[int, ...]
    corrected: tuple[bool, ...]

    @property
    def num_corrections(self) -> int:
        """Number of corrected tokens."""
        return sum(self.corrected)


def most_corrected(files: Sequence[Path], count: int = NUM_SAMPLES) -> list[CorrectedSample]:
    """The completions with the most corrections; ties go to the earlier file and row.

    Args:
        files: Rollout files.
        count: Number of completions.

    Returns:
        Completions with at least one correction, most corrected first.

    Raises:
        RolloutFileError: If a file is missing, damaged, empty or of another schema version.
    """
    best: list[CorrectedSample] = []
    for path in files:
        best = sorted([*best, *_corrected_rows(path, count)], key=lambda sample: -sample.num_corrections)[:count]
    return best


def samples_section(folder: Path, decode: Decode | None, target: LinkTarget | None = None) -> str:
    """Section of the most corrected samples; where there are none it says so.

    Args:
        folder: The ``rollouts`` folder of a run.
        decode: Token ids to text; without it ids are shown.
        target: Where the trace page shows a sample; None where there is no such page.
    """
    title = "The most corrected completions"
    if not any(folder.glob("*.parquet")):
        return section(title, missing("Not there: the run folder has no rollouts."))
    files = rollout_files(folder)
    read = [path for step in spaced(by_step(files)) for path in step]
    samples = most_corrected(read)
    where = f"{len(read)} of {len(files)} files of rollouts read"
    if not samples:
        return section(title, missing(f"No completion has a correction ({where})."))
    legend = f"Struck out: the student's rejected proposal. Underlined: what was committed instead. {where}."
    note = "" if decode else "Token ids are shown, since no decoder was given."
    blocks = []
    for sample in samples:
        blocks += [_heading(sample), _sample_html(sample, decode)]
        if target is not None:
            blocks.append(link("This completion token by token", target(sample.file, sample.row)))
    return section(title, paragraph(legend, "faint"), paragraph(note, "faint"), *blocks)


def _corrected_rows(path: Path, count: int) -> list[CorrectedSample]:
    if not read_rollout_facts(path).num_rows:
        raise RolloutFileError(f"{path} holds no rollout; expected at least one row")
    try:
        table = pq.read_table(path, columns=list(_COLUMNS))
    except (pa.ArrowException, OSError) as error:  # the footer is whole and what it points to is not
        reason = " ".join(str(error).split())
        raise RolloutFileError(f"{path} is damaged ({reason}); write it again") from error
    counts = [sum(flags) for flags in table["correction_mask"].to_pylist()]
    chosen = sorted((row for row, number in enumerate(counts) if number), key=lambda row: (-counts[row], row))[:count]
    return [_sample(path, row, table.slice(row, 1).to_pylist()[0]) for row in chosen]


def _sample(path: Path, row: int, record: dict[str, list[int]]) -> CorrectedSample:
    return CorrectedSample(
        file=path.name,
        row=row,
        prompt_ids=tuple(record["prompt_ids"] or ()),
        completion_ids=tuple(record["completion_ids"]),
        proposal_ids=tuple(record["proposal_ids"]),
        corrected=tuple(map(bool, record["correction_mask"])),
    )


def _heading(sample: CorrectedSample) -> str:
    length = len(sample.completion_ids)
    plural = "correction" if sample.num_corrections == 1 else "corrections"
    return paragraph(f"{sample.file}, row {sample.row}: {sample.num_corrections} {plural} in {length} tokens")


def _sample_html(sample: CorrectedSample, decode: Decode | None) -> str:
    def text(ids: Sequence[int]) -> str:
        shown = decode(list(ids)) if decode else "".join(f"{token} " for token in ids)
        return escape(shown.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    pieces = [f'<span class="prompt">{text(sample.prompt_ids)}</span>'] if sample.prompt_ids else []
    length = min(len(sample.completion_ids), NUM_TOKENS)
    start = 0
    for position in [index for index in range(length) if sample.corrected[index]] + [length]:
        if position > start:
            pieces.append(text(sample.completion_ids[start:position]))
        if position < length:
            proposal, committed = text(sample.proposal_ids[position : position + 1]), sample.completion_ids[position]
            pieces.append(f"<del>{proposal}</del><ins>{text([committed])}</ins>")
        start = position + 1
    rest = len(sample.completion_ids) - length
    if rest:
        pieces.append(f'<span class="prompt"> … {rest} more tokens</span>')
    return f'<div class="sample">{"".join(pieces)}</div>'
