"""``saki bench``: what rollouts, bridges and training steps cost, against what else there is."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from saki.benchmarking import (
    BenchPair,
    bench_bridge,
    bench_rollout,
    bench_train,
    bridge_table,
    lognormal_lengths,
    make_pair,
    make_workload,
    open_arms,
    rollout_table,
    train_table,
)
from saki.benchmarking.arms import DEFAULT_ARMS, STATIC_ARMS
from saki.benchmarking.rollout import prefill_work
from saki.cli.console import fresh_folder, git_commit, pick_device, pick_dtype, print_json, run_facts, subcommand
from saki.config import CommandParser, write_resolved
from saki.config.commands import (
    BenchBridgeArguments,
    BenchPairArguments,
    BenchRolloutArguments,
    BenchTrainArguments,
    CommonArguments,
)
from saki.config.sources import model_path
from saki.files import write_text

EXAMPLES = {
    "rollout": "saki bench rollout --preset tiny --batch_size 8 --json",
    "bridge": "saki bench bridge --vocab 49152,152064 --compile",
    "train": "saki bench train --preset tiny --batch_size 8",
}
SUMMARIES = {
    "rollout": "Tokens per second of exact-q rollouts, the student alone, external loops and transformers, in turn.",
    "bridge": "Time and exactness of the bridge solver against 16 bisections, by vocabulary.",
    "train": "Seconds of a training step against TRL's distillation trainer (needs the extra 'bench').",
}
_KINDS: dict[str, Any] = {
    "rollout": BenchRolloutArguments,
    "bridge": BenchBridgeArguments,
    "train": BenchTrainArguments,
}
USAGE = f"""usage: saki bench rollout|bridge|train [--key value ...]

saki bench rollout    {SUMMARIES["rollout"]}
saki bench bridge     {SUMMARIES["bridge"]}
saki bench train      {SUMMARIES["train"]}

saki bench rollout --help shows its options.
example: {EXAMPLES["rollout"]}"""


def parser(name: str) -> CommandParser:
    """Options of one of the sub-commands."""
    return CommandParser([CommonArguments, _KINDS[name]], f"saki bench {name}", SUMMARIES[name], EXAMPLES[name])


def run(argv: Sequence[str]) -> int:
    """Run the command.

    Raises:
        ValueError: If the first word is none of the benchmarks.
    """
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name = subcommand(argv, _KINDS, "saki bench")
    common, args = parser(name).parse(argv[1:])
    folder = fresh_folder(common.out, f"saki bench {name}") if common.out else None
    benches: dict[str, Callable[[Any, Callable[[str], None]], tuple[dict[str, Any], str]]]
    benches = {"rollout": _rollout, "bridge": _bridge, "train": _train}
    with _threads(args.threads), _progress(f"bench {name}") as say:
        result, table = benches[name](args, say)
    result = {"device": _device_name(pick_device(args.device)), "threads": args.threads, **run_facts(), **result}
    print(f"{result['device']}, {args.threads} thread(s), commit {git_commit()}\n")
    print(table)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        write_resolved(folder / "config.resolved.yaml", common, args, facts=run_facts())
        write_text(folder / f"{name}.json", json.dumps(result, indent=2))
        write_text(folder / f"{name}.txt", table + "\n")
        print(f"written to {folder}")
    if common.json:
        print_json(result)
    return 0


def _rollout(args: BenchRolloutArguments, say: Callable[[str], None]) -> tuple[dict[str, Any], str]:
    pair = _pair(args)
    requests = args.requests or args.batch_size
    cap = args.max_completion_length
    lognormal = args.lengths == "lognormal"
    lengths = lognormal_lengths(requests, cap, args.seed) if lognormal else (cap,) * requests
    work = make_workload(
        pair,
        requests=requests,
        batch_size=args.batch_size,
        samples_per_prompt=args.samples_per_prompt,
        prompt_length=args.prompt_length,
        lengths=lengths,
        radius=args.trust_region_radius,
        seed=args.seed,
    )
    chosen = tuple(word.strip() for word in args.arms.split(","))
    if args.arms == "default":
        chosen = STATIC_ARMS if lognormal else DEFAULT_ARMS
    with open_arms(chosen, pair, work, block_size=args.block_size, compiled=args.compile) as (arms, skipped):
        result = bench_rollout(arms, work, pair.device, repeats=args.repeats, progress=say)
        counted = next((arm for arm in arms if arm.name in ("exact_q", "student_only")), None)
        if args.samples_per_prompt > 1 and counted is not None:
            result["prefill"] = prefill_work(counted, work)
    facts = {"models": pair.description, "compiled": args.compile, "repeats": args.repeats, **work.facts()}
    result = {"workload": facts, **result, "skipped": skipped}
    return result, rollout_table(result)


def _bridge(args: BenchBridgeArguments, say: Callable[[str], None]) -> tuple[dict[str, Any], str]:
    result = bench_bridge(
        [int(word) for word in args.vocab.split(",")],
        rows=(args.rows, args.block_size),
        radius=args.trust_region_radius,
        repeats=args.repeats,
        compiled=args.compile,
        seed=args.seed,
        device=pick_device(args.device),
        progress=say,
    )
    return result, bridge_table(result)


def _train(args: BenchTrainArguments, say: Callable[[str], None]) -> tuple[dict[str, Any], str]:
    result = bench_train(
        _pair(args),
        methods=args.methods.split(","),
        batch_size=args.batch_size,
        prompt_length=args.prompt_length,
        length=args.max_completion_length,
        repeats=args.repeats,
        steps=args.steps,
        seed=args.seed,
        compiled=args.compile,
        progress=say,
    )
    return result, train_table(result)


def _pair(args: BenchPairArguments) -> BenchPair:
    return make_pair(
        args.preset,
        model=args.model and model_path(args.model),
        teacher_model=args.teacher_model and model_path(args.teacher_model),
        dtype=pick_dtype(args.dtype),
        device=pick_device(args.device),
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[str], None]]:
    with tqdm(desc=title, bar_format="{desc} [{elapsed}]", leave=False) as bar:
        yield lambda doing: bar.set_description_str(f"{title}: {doing}")


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return f"cpu ({line.partition(':')[2].strip()})"
    return f"cpu ({platform.machine()})"
