"""The pages of a finished training: its trace and its report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from saki.analysis.report import REPORT, write_report
from saki.analysis.rollout_files import NUM_FILES, by_step, rollout_files, spaced
from saki.analysis.rollout_samples import most_corrected
from saki.analysis.trace import MAX_TOKENS, TRACE_PAGE
from saki.cli.view import run_judge, run_settings, view_run
from saki.config.view import ViewArguments
from saki.rollout import read_rollout_facts

logger = logging.getLogger(__name__)

MAX_COMPLETIONS = 512
"""Most completions of the trace page beside the most corrected ones, so that it stays small; saki view shows more."""


def write_pages(folder: Path, tokenizer: Any) -> tuple[Path | None, Path | None]:
    """Write ``trace.html`` and ``report.html`` into a run folder; what goes wrong is one warning, and no error.

    Args:
        folder: The run folder.
        tokenizer: The run's.

    Returns:
        Paths of the trace page and of the report, None where there is none: a run that kept no rollouts has no trace.
    """
    kept = any((folder / "rollouts").glob("*.parquet"))
    trace = _attempt(folder, TRACE_PAGE, "saki view", lambda: _trace(folder, tokenizer)) if kept else None
    decode = lambda ids: str(tokenizer.decode(ids))  # noqa: E731
    return trace, _attempt(folder, REPORT, "saki report", lambda: write_report(folder, decode=decode))


def _trace(folder: Path, tokenizer: Any) -> Path:
    """The trace of a few steps, with the completions that the report shows."""
    files = [path for step in spaced(by_step(rollout_files(folder)), NUM_FILES) for path in step]
    always: dict[str, set[int]] = {}
    for sample in most_corrected(files):
        always.setdefault(sample.file, set()).add(sample.row)
    facts = [read_rollout_facts(path) for path in files]
    mean_length = sum(each.num_tokens for each in facts) / max(sum(each.num_rows for each in facts), 1)
    room = min(MAX_COMPLETIONS, int(MAX_TOKENS / max(mean_length, 1)))
    with ExitStack() as stack:
        judge = run_judge(ViewArguments(), [run_settings(folder)], tokenizer, stack)
        limit = max(1, room // len(files))
        return view_run(folder, tokenizer, judge, max_files=NUM_FILES, limit=limit, always=always)


def _attempt(folder: Path, name: str, command: str, write: Callable[[], Path]) -> Path | None:
    try:
        return write()
    except Exception as error:  # the training is done and saved; a page can be made again
        reason = " ".join(str(error).split()) or type(error).__name__
        logger.warning("%s was not written (%s); %s %s makes it again", folder / name, reason, command, folder)
        return None
