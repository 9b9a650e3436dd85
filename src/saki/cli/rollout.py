"""``saki rollout``: completions under a method's behavior policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from saki.cli.console import fresh_folder, print_json, progress_bar, run_facts
from saki.cli.engines import load_rollout_inputs
from saki.config import CommandParser, write_resolved
from saki.config.commands import CommonArguments, RolloutArguments
from saki.functional import pinsker_bound, request_seed
from saki.methods import get_method
from saki.rollout import HFDecoder, ResidentEngine, write_rollouts
from saki.types import RolloutBatch, RolloutRequest, json_object

SUMMARY = "Roll out prompts under the behavior policy of a method, and store every token with its metadata."
EXAMPLE = "saki rollout --method saki --trust_region_radius 0.02 --limit 16 --out runs/rollout"


def parser() -> CommandParser:
    """The command's options."""
    return CommandParser([CommonArguments, RolloutArguments], "saki rollout", SUMMARY, EXAMPLE)


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    common, args = parser().parse(argv)
    method = get_method(args.method, json_object("method_options", args.method_options))
    request = RolloutRequest(
        seed=request_seed(args.seed, "probe", 0),
        max_completion_length=args.max_completion_length,
        num_generations=args.num_generations,
        behavior=method.behavior,
        trust_region_radius=args.trust_region_radius if method.behavior == "bridge" else 0.0,
        block_size=args.block_size,
        solver=args.solver,
        top_k=method.top_k,
    )
    folder = fresh_folder(common.out, "saki rollout") if common.out else None
    pair, rendered = load_rollout_inputs(args)
    assert pair.teacher is not None
    engine = ResidentEngine(
        HFDecoder(pair.student, pair.spec.vocab_size),
        HFDecoder(pair.teacher, pair.spec.vocab_size),
        pair.spec.stop_token_ids,
        max_batch_rows=args.batch_rows,
    )
    with progress_bar("rollout", "completions") as progress:
        batch = engine.generate(rendered.prompts, request, progress)
    stats = engine.stats()
    seconds = sum(stats.seconds.values())
    summary: dict[str, Any] = {
        "completions": len(batch),
        "tokens": batch.num_valid_tokens,
        "tokens_per_s": batch.num_valid_tokens / seconds,
        "correction_rate": float(batch.correction_mask.sum()) / max(batch.num_valid_tokens, 1),
        "mean_tv": float(batch.tv[batch.response_mask].double().mean()),
        "truncated_share": batch.finish_reasons.count("length") / len(batch),
        "waves": stats.waves,
        "teacher_q_forwards": stats.teacher_q_forwards,
    }
    bound = ""
    if method.behavior != "skd":
        summary["pinsker_bound"] = pinsker_bound(batch.trust_region_radius)
        bound = f", Pinsker bound {summary['pinsker_bound']:.4f}"
    order = torch.argsort(batch.correction_mask.sum(dim=1), descending=True, stable=True)
    for row in order[: args.show].tolist():
        print(f"--- prompt {int(batch.prompt_keys[row])}, sample {int(batch.sample_indices[row])}", end=" ")
        print(f"({batch.finish_reasons[row]}, {int(batch.correction_mask[row].sum())} corrections)")
        print(marked_text(batch, row, pair.tokenizer))
    print(
        f"{summary['completions']} completions, {summary['tokens']} tokens, "
        f"{summary['tokens_per_s']:.0f} tokens/s; correction rate {summary['correction_rate']:.4f}, "
        f"mean TV {summary['mean_tv']:.4f}{bound}"
    )
    if folder:
        write_resolved(folder / "config.resolved.yaml", common, args, facts=run_facts())
        write_rollouts(folder / "rollouts.parquet", batch, {"method": method.name})
        summary["file"] = str(folder / "rollouts.parquet")
        print(f"written to {summary['file']}")
    if common.json:
        print_json(summary)
    return 0


def marked_text(batch: RolloutBatch, row: int, tokenizer: Any) -> str:
    """A completion as text; each correction shows as {proposal->committed}."""
    pieces = []
    for token, proposal, corrected, valid in zip(
        batch.completion_ids[row].tolist(),
        batch.proposal_ids[row].tolist(),
        batch.correction_mask[row].tolist(),
        batch.response_mask[row].tolist(),
        strict=True,
    ):
        if valid:
            text = tokenizer.decode([token])
            pieces.append(f"{{{tokenizer.decode([proposal])}->{text}}}" if corrected else text)
    return "".join(pieces)
