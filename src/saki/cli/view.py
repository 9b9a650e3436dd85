"""``saki view ROLLOUTS ...``: rollouts as one HTML page."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from saki.analysis.trace import (
    TRACE_PAGE,
    Judge,
    TokenTexts,
    choose_files,
    read_trace,
    rollout_files,
    write_trace,
)
from saki.cli.console import page_target, print_json
from saki.cli.view_verdicts import graded_by, stored_in
from saki.config import read_yaml
from saki.config.paths import PathsParser
from saki.config.sources import LAB_PROMPTS, model_path
from saki.config.view import ViewArguments
from saki.models import ModelLoadError, compare_tokenizers, load_tokenizer

logger = logging.getLogger(__name__)

SUMMARY = "Write rollouts as one HTML page without network: each token with what was proposed and committed there."
EXAMPLE = "saki view runs/mine -o trace.html"
SEVERAL = "traces.html"
"""The page of several sources: the trace page of a run, which its report links to, stays as it is."""


def parser() -> PathsParser:
    """The command's options; files or run folders come before them."""
    return PathsParser(ViewArguments, "saki view ROLLOUTS ...", SUMMARY, EXAMPLE, "rollouts")


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    paths, args = parser().parse(argv)
    files: list[Path] = []
    notes: list[str] = []
    for path in paths:
        chosen, left_out = choose_files(
            rollout_files(path), max_tokens=args.max_tokens // len(paths), steps=args.step_numbers, limit=args.limit
        )
        files += [each for each in chosen if each not in files]
        notes += left_out
    out = page_target(Path(args.out) if args.out else _page(paths))
    settings = [run_settings(path) for path in paths]
    tokenizer = run_tokenizer(paths, settings, args.model)
    with ExitStack() as stack:
        judge = run_judge(args, settings, tokenizer, stack)
        trace = read_trace(files, limit=args.limit, judge=judge, notes=notes)
    title = "Trace of " + ", ".join(path.resolve().name for path in paths)
    write_trace(out, trace, title=title, texts=None if tokenizer is None else TokenTexts(tokenizer))
    completions, tokens = len(trace.completions["row"]), len(trace.columns["committed"])
    corrections = int(trace.columns["corrected"].sum())
    for note in trace.notes:
        print(note)
    print(f"{completions} completions, {tokens} tokens, {corrections} corrections out of {len(files)} files: {out}")
    if args.json:
        summary: dict[str, Any] = {"completions": completions, "tokens": tokens, "corrections": corrections}
        print_json({**summary, "files": len(files), "decoded": tokenizer is not None, "page": str(out)})
    return 0


def view_run(
    folder: Path,
    tokenizer: Any,
    judge: Judge | None,
    *,
    max_files: int,
    limit: int | None = None,
    always: Mapping[str, Collection[int]] | None = None,
) -> Path:
    """Write the trace page of a run into its folder.

    Args:
        folder: The run folder.
        tokenizer: The run's.
        judge: Says which completions are right.
        max_files: Most steps, evenly spaced over the run.
        limit: Most completions of each rollout file; None for all.
        always: By name of a rollout file, rows that are taken beyond the limit.

    Returns:
        Path of the page.
    """
    files, notes = choose_files(rollout_files(folder), max_files=max_files, limit=limit)
    trace = read_trace(files, limit=limit, always=always, judge=judge, notes=notes)
    title = f"Trace of {folder.resolve().name}"
    return write_trace(folder / TRACE_PAGE, trace, title=title, texts=TokenTexts(tokenizer))


def _page(paths: Sequence[Path]) -> Path:
    """The page where none is asked for: in the run folder, or in the folder that several sources share."""
    if len(paths) == 1:
        return _home(paths[0]) / TRACE_PAGE
    return Path(os.path.commonpath([_home(path).resolve() for path in paths])) / SEVERAL


def _home(path: Path) -> Path:
    """The run folder that a path is, or lies in; else the folder of the file."""
    folder = path if path.is_dir() else path.parent
    return folder.parent if folder.name == "rollouts" else folder


def run_settings(path: Path) -> dict[str, Any]:
    """The resolved configuration of the run that a path belongs to; empty where there is none."""
    config = _home(path) / "config.resolved.yaml"
    return read_yaml(config) if config.is_file() else {}


def run_tokenizer(paths: Sequence[Path], settings: Sequence[dict[str, Any]], model: str | None) -> Any:
    """The tokenizer asked for, else that of the runs, which must agree; None where there is none to be had."""
    if model is not None:
        return load_tokenizer(model_path(model))
    found: Any = None
    for path, values in zip(paths, settings, strict=True):
        name = _run_model(path, values)
        if name is None:
            logger.warning("%s belongs to no run with a model; give its tokenizer with --model to see text", path)
            return None
        try:
            tokenizer = load_tokenizer(name)
        except ModelLoadError as error:
            logger.warning("token ids are shown: %s; give the tokenizer with --model to see text", error)
            return None
        if found is not None:
            compare_tokenizers(found, tokenizer)
        found = tokenizer
    return found


def _run_model(path: Path, settings: dict[str, Any]) -> str | None:
    """The trained model of a run, where it is written, else the model that the run began with."""
    trained = _home(path) / "model"
    if (trained / "tokenizer_config.json").is_file():
        return str(trained)
    name = settings.get("model")
    return model_path(name) if isinstance(name, str) and name else None


def run_judge(
    args: ViewArguments, settings: Sequence[dict[str, Any]], tokenizer: Any, stack: ExitStack
) -> Judge | None:
    """What says which completions are right; the lab's own answers where all runs drew from them."""
    if args.samples is not None:
        return stored_in(Path(args.samples), tokenizer)
    from_lab = all(values.get("dataset") == LAB_PROMPTS for values in settings)
    answers = args.answers or (LAB_PROMPTS if from_lab else None)
    if answers is None or (tokenizer is None and args.answers is None):
        return None
    seeds = {values.get("seed", 0) for values in settings}
    if answers == LAB_PROMPTS and len(seeds) > 1:
        logger.warning("answers are not graded: the runs drew problems with the seeds %s", sorted(seeds))
        return None
    return graded_by(answers, tokenizer, stack, seed=seeds.pop())
