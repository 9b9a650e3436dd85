"""``saki eval``: a model alone on benchmarks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from saki import lab
from saki.cli.console import fresh_folder, pick_device, pick_dtype, print_json, progress_bar, run_facts
from saki.cli.engines import model_engine
from saki.config import CommandParser, UsageError, write_resolved
from saki.config.commands import CommonArguments, EvalArguments
from saki.config.sources import model_path
from saki.evaluation import evaluate_model, lab_benchmarks, markdown_table, text_table
from saki.files import write_text
from saki.models import load_causal_lm, load_tokenizer

SUMMARY = "Sample a model alone on benchmarks: Mean@k and Pass@k with intervals over problems."
EXAMPLE = "saki eval --model lab/teacher --benchmarks lab --num_problems 100 --out runs/eval"


def parser() -> CommandParser:
    """The command's options."""
    return CommandParser([CommonArguments, EvalArguments], "saki eval", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    common, args = parser().parse(argv)
    names = lab.TEST_SETS if args.benchmarks == "lab" else tuple(args.benchmarks.split(","))
    unknown = [name for name in names if name not in lab.TEST_SETS]
    if unknown:
        raise UsageError(f"unknown benchmark {unknown[0]!r}; choose lab, or among {', '.join(lab.TEST_SETS)}")
    benchmarks = lab_benchmarks(args.num_problems, split=args.split, names=names)
    folder = fresh_folder(common.out, "saki eval") if common.out else None
    path = model_path(args.model)
    tokenizer = load_tokenizer(path, revision=args.revision, trust_remote_code=args.trust_remote_code)
    model = load_causal_lm(
        path,
        dtype=pick_dtype(args.dtype),
        device=pick_device(args.device),
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
    )
    engine = model_engine(model, tokenizer, batch_rows=args.batch_rows, share=True)
    with progress_bar("evaluate", "samples") as progress:
        result = evaluate_model(
            engine,
            tokenizer,
            benchmarks,
            seed=args.seed,
            num_samples=args.num_samples,
            max_completion_length=args.max_new_tokens,
            progress=progress,
            samples_path=folder / "samples" if folder else None,
        )
    results = {args.model: result}
    print(text_table(results))
    if folder:
        write_resolved(folder / "config.resolved.yaml", common, args, facts=run_facts())
        write_text(folder / "evaluation.json", json.dumps({args.model: result.to_json()}, indent=2))
        write_text(folder / "evaluation.md", markdown_table(results) + "\n")
        print(f"written to {folder}")
    if common.json:
        print_json(result.to_json())
    return 0
