"""``saki data``: prepare a set of prompts for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from saki.cli.console import holdings, print_json
from saki.config import CommandParser, UsageError
from saki.config.commands import CommonArguments
from saki.config.inputs import DataArguments
from saki.config.sources import model_path
from saki.data import PreparedPrompts, load_prompt_dataset, prepare_prompts, write_prompts
from saki.data.preparation import REASONS
from saki.models import load_tokenizer

SUMMARY = "Prepare prompts: check fields, set the instruction, filter, order, and say what was dropped and why."
EXAMPLE = "saki data dapo-math-17k-processed.parquet --language no_cjk --deduplicate --out prompts.parquet"


class DataParser(CommandParser):
    """Takes the source first, as it takes a YAML file first."""

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Parse a command line."""
        words = list(argv)
        if words and not words[0].startswith("-") and Path(words[0]).suffix not in (".yaml", ".yml"):
            words = ["--source", *words]
        return super().parse(words)


def parser() -> CommandParser:
    """The command's options."""
    return DataParser([CommonArguments, DataArguments], "saki data", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    common, args = parser().parse(argv)
    path = _output(common.out)
    rows = load_prompt_dataset(
        args.source,
        split=args.dataset_split,
        config_name=args.config_name,
        revision=args.revision,
        prompt_column=args.prompt_column,
        answer_column=args.answer_column,
    )
    prepared = prepare_prompts(
        rows,
        suffix=args.suffix,
        strip_suffix=args.strip_suffix,
        language=args.language,
        deduplicate=args.deduplicate,
        tokenizer=load_tokenizer(model_path(args.tokenizer)) if args.tokenizer else None,
        max_prompt_length=args.max_prompt_length,
        seed=args.shuffle_seed,
    )
    if path:
        write_prompts(path, prepared, asdict(args))
    print(summary(prepared, args))
    print(f"written to {path}" if path else "nothing was written; name a file with --out prompts.parquet")
    if common.json:
        print_json({**prepared.to_json(), "source": args.source, "out": str(path) if path else None})
    return 0


def summary(prepared: PreparedPrompts, args: DataArguments) -> str:
    """The counts as a table."""
    lines = [
        f"{prepared.num_rows:8,}  rows in {args.source}",
        f"{prepared.num_unique:8,}  unique prompts"
        + (f", {prepared.num_conflicting} of them with answers that differ" if prepared.has_answers else ""),
    ]
    off = {
        "language": args.language == "any" and "--language no_cjk",
        "duplicate": not args.deduplicate and "--deduplicate",
        "too_long": args.max_prompt_length is None and "--max_prompt_length",
    }
    for reason, count in prepared.dropped.items():
        if reason == "no_answer" and not prepared.has_answers:
            lines.append("       -  without answers, as the source has no such column (--answer_column names another)")
            continue
        unused = off.get(reason)
        lines.append(f"{-count:8,}  {REASONS[reason]}" + (f" (not looked at; {unused} does)" if unused else ""))
    lines.append(f"{len(prepared.rows):8,}  kept")
    if args.strip_suffix:
        lines.append(f"{prepared.num_stripped:8,}  of them without their old instruction")
    return "\n".join(lines)


def _output(out: str | None) -> Path | None:
    """The file to write.

    Raises:
        ValueError: If it is there already, would not be read as parquet, or cannot be written.
    """
    if out is None:
        return None
    path = Path(out)
    if path.suffix != ".parquet":
        raise UsageError(f"--out of saki data names a parquet file, got {out!r}; give one that ends in .parquet")
    if path.exists():
        raise UsageError(f"{path} is there already; give saki data another --out or remove it first")
    holdings(path.parent)
    return path
