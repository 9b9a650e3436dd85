"""``saki eval``: a model alone on benchmarks; ``regrade``: its stored samples again; ``tables``: many side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from saki.cli.console import pick_device, pick_dtype, print_json, progress_bar, run_facts
from saki.cli.engines import model_engine
from saki.cli.eval_folder import RESULT, SAMPLES, claim, evaluation_folder, write_records
from saki.cli.eval_tables import run as run_tables
from saki.cli.regrade import run as run_regrade
from saki.config import CommandParser, UsageError, write_resolved
from saki.config.benchmarks import Choice, benchmark_choices, benchmark_records
from saki.config.commands import CommonArguments, EvalArguments
from saki.config.sources import model_path
from saki.evaluation import (
    Benchmark,
    BenchmarkSpec,
    GradingPool,
    evaluate_model,
    lab_benchmarks,
    load_benchmark,
    markdown_table,
    render_benchmarks,
    text_table,
)
from saki.files import write_text
from saki.models import load_causal_lm, load_tokenizer, resolve_pair, tokenizer_home

SUMMARY = (
    "Sample a model alone on benchmarks: Mean@k and Pass@k with intervals over problems. Killed, it goes on with the "
    "same command and --out. saki eval regrade FOLDER grades stored samples again; saki eval tables FOLDER ... puts "
    "evaluations side by side."
)
EXAMPLE = "saki eval --model lab/teacher --benchmarks lab --num_problems 100 --out runs/eval"

LAB_TOKENS, MATH_TOKENS = 64, 16_384
CPU_CHUNK_ROWS, GPU_CHUNK_BATCHES = 32, 4


def parser() -> CommandParser:
    """The command's options."""
    return CommandParser([CommonArguments, EvalArguments], "saki eval", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    if argv and argv[0] == "regrade":
        return run_regrade(argv[1:])
    if argv and argv[0] == "tables":
        return run_tables(argv[1:])
    common, args = parser().parse(argv)
    choices, records = benchmark_choices(args.benchmarks), benchmark_records(args.benchmarks)
    all_lab = not any(isinstance(choice, BenchmarkSpec) for choice in choices)
    if args.data_dir and all_lab:
        raise UsageError(
            f"data_dir {args.data_dir} would not be read: the lab's problems come with the package; leave --data_dir "
            "out, or name a benchmark that lies there"
        )
    folder = evaluation_folder(common.out) if common.out else None
    with _pool(choices, args) as pool:
        benchmarks = _benchmarks(choices, args, pool)
        path = model_path(args.model)
        tokenizer = load_tokenizer(
            tokenizer_home(path), revision=args.revision, trust_remote_code=args.trust_remote_code
        )
        device = pick_device(args.device)
        model = load_causal_lm(
            path,
            dtype=pick_dtype(args.dtype),
            device=device,
            revision=args.revision,
            trust_remote_code=args.trust_remote_code,
        )
        engine = model_engine(model, tokenizer, batch_rows=args.batch_rows, share=True, temperature=args.temperature)
        max_new_tokens = args.max_new_tokens or (LAB_TOKENS if all_lab else MATH_TOKENS)
        chunk_rows = args.chunk_rows
        if chunk_rows is None and not all_lab:  # a set of the lab takes seconds
            chunk_rows = CPU_CHUNK_ROWS if device.type == "cpu" else GPU_CHUNK_BATCHES * args.batch_rows
        prompts = render_benchmarks(
            tokenizer,
            benchmarks,
            max_completion_length=max_new_tokens,
            max_positions=engine.max_positions,
            chat_template_kwargs=args.chat_template_kwargs,
        )  # what is refused here leaves no folder behind
        if folder:
            inputs = {
                "dtype": args.dtype,
                "seed": args.seed,
                "num_samples": args.num_samples,
                "max_new_tokens": max_new_tokens,
                "temperature": args.temperature,
                "chunk_rows": chunk_rows,
                "benchmarks": {each.name: _digest([each.prompts, each.answers]) for each in benchmarks},
                "checksum": engine.student_checksum(),
                "stop_token_ids": list(resolve_pair(model, None, tokenizer, None).stop_token_ids),
                "prompts": _digest([[prompt.token_ids for prompt in own] for own in prompts]),
            }
            claim(folder, inputs)
            write_records(folder, records)
            write_resolved(folder / "config.resolved.yaml", common, args, facts=run_facts())
        with progress_bar("evaluate", "samples") as progress:
            result = evaluate_model(
                engine,
                tokenizer,
                benchmarks,
                seed=args.seed,
                num_samples=args.num_samples,
                k=args.k,
                max_completion_length=max_new_tokens,
                chat_template_kwargs=args.chat_template_kwargs,
                progress=progress,
                samples_path=folder / SAMPLES if folder else None,
                chunk_rows=chunk_rows,
                resume=True,
            )
    results = {args.model: result}
    print(text_table(results))
    if folder:
        write_text(folder / RESULT, json.dumps({args.model: result.to_json()}, indent=2))
        write_text(folder / "evaluation.md", markdown_table(results) + "\n")
        print(f"written to {folder}")
    if common.json:
        print_json(result.to_json())
    return 0


@contextmanager
def _pool(choices: Sequence[Choice], args: Any) -> Iterator[GradingPool | None]:
    """Grading workers, where a benchmark needs them."""
    if not any(isinstance(choice, BenchmarkSpec) and choice.grade is None for choice in choices):
        yield None
        return
    with GradingPool(args.grading_workers, args.grading_seconds) as pool:
        yield pool


def _benchmarks(choices: Sequence[Choice], args: Any, pool: GradingPool | None) -> list[Benchmark]:
    data_dir = Path(args.data_dir) if args.data_dir else None
    found: list[Benchmark] = []
    for choice in choices:
        if isinstance(choice, BenchmarkSpec):
            found.append(
                load_benchmark(choice, pool, data_dir=data_dir, limit=args.limit, prompt_suffix=args.prompt_suffix)
            )
        else:
            num_problems = min(args.num_problems, args.limit or args.num_problems)
            found.extend(lab_benchmarks(num_problems, split=args.split, names=(choice,)))
    return found


def _digest(values: Any) -> str:
    """Of JSON values."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
