"""Forward KL of the teacher from a student, on completions that the teacher wrote before any training.

``freeze`` takes the last prompts of a data set out, lets the teacher complete them once, and writes two files:
``heldout.parquet`` (the completions) and ``train.parquet`` (the rows before them, for ``saki train``). ``measure`` then
gives the mean of KL(T || S) over all next-token laws along those completions, for any student folder.

    python heldout_kl.py freeze --teacher models/teacher --dataset PATH/TO/prompts.parquet --out data
    python heldout_kl.py measure --teacher models/teacher --student models/student --heldout data/heldout.parquet
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saki.data import collate_rollout, load_prompt_dataset, render_prompts
from saki.functional import kl_divergence, normalized_log_probs, request_seed, total_variation
from saki.models import load_causal_lm, load_pair, load_tokenizer, mask_padding_ids, resolve_pair
from saki.rollout import HFDecoder, ResidentEngine, read_rollouts, write_rollouts
from saki.types import Prompt, RolloutRequest

NUM_PROMPTS = 64
MAX_PROMPT_LENGTH = 128
MAX_COMPLETION_LENGTH = 32
CHUNK_TOKENS = 4
"""Next-token laws that exist at once in float64, 1.5 MiB each way: larger pieces leave the processor's cache."""
LOGPROB_TOLERANCE = 1e-2
"""Nats by which a teacher may differ from the log-probs in the frozen file: float32 kernels differ by about 1e-4."""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0 on success, 2 for a user's mistake."""
    parser = argparse.ArgumentParser(description="Held-out forward KL(T || S) on frozen teacher completions.")
    commands = parser.add_subparsers(dest="command", required=True)
    frozen = commands.add_parser("freeze", help="hold prompts out and let the teacher complete them")
    frozen.add_argument("--teacher", required=True, help="teacher folder")
    frozen.add_argument("--dataset", required=True, help="file with a 'prompt' column")
    frozen.add_argument("--out", type=Path, required=True, help="folder for heldout.parquet and train.parquet")
    frozen.add_argument("--num-prompts", type=int, default=NUM_PROMPTS, help="prompts to hold out")
    frozen.add_argument("--max-prompt-length", type=int, default=MAX_PROMPT_LENGTH, help="tokens")
    frozen.add_argument("--max-completion-length", type=int, default=MAX_COMPLETION_LENGTH, help="tokens")
    frozen.add_argument("--seed", type=int, default=0, help="seed of the teacher's draws")
    measured = commands.add_parser("measure", help="KL of a student on the frozen completions")
    measured.add_argument("--teacher", required=True, help="the teacher that wrote the completions")
    measured.add_argument("--student", required=True, help="student folder")
    measured.add_argument("--heldout", type=Path, required=True, help="heldout.parquet of freeze")
    measured.add_argument(
        "--out", type=Path, help="also write the result, with one entry per prompt, to this JSON file"
    )
    measured.add_argument("--before", type=Path, help="result of an earlier measurement, for the change since then")
    args = parser.parse_args(argv)
    try:
        if args.command == "freeze":
            summary = freeze(
                args.teacher,
                args.dataset,
                args.out,
                num_prompts=args.num_prompts,
                max_prompt_length=args.max_prompt_length,
                max_completion_length=args.max_completion_length,
                seed=args.seed,
            )
        else:
            before = json.loads(args.before.read_text()) if args.before else None
            result = measure(args.teacher, args.student, args.heldout)
            summary = result.summary(before) | resources()
            if args.out:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(summary | result.per_prompt(), indent=2) + "\n")
    except (ValueError, OSError) as error:
        print(f"heldout_kl.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary))
    return 0


def freeze(
    teacher: str,
    dataset: str,
    out: Path,
    *,
    num_prompts: int = NUM_PROMPTS,
    max_prompt_length: int = MAX_PROMPT_LENGTH,
    max_completion_length: int = MAX_COMPLETION_LENGTH,
    seed: int = 0,
) -> dict[str, Any]:
    """Split the data set and freeze the teacher's completions.

    Held out are the last ``num_prompts`` rows with distinct prompts of at most ``max_prompt_length`` tokens.
    ``train.parquet`` gets the rows before the first of them whose prompt is not among them word for word (the DAPO
    data set repeats some prompts), so no training run on it can meet a held-out prompt.

    Args:
        teacher: Teacher folder.
        dataset: File or hub name with a ``prompt`` column.
        out: Folder for the two files.
        num_prompts: Prompts to hold out.
        max_prompt_length: Tokens, template included.
        max_completion_length: Tokens per completion, end token included.
        seed: Run seed of the draws; they are keyed by it and by the row in the data set.

    Raises:
        ValueError: If there are not enough prompts, or the files exist.
    """
    heldout_path, train_path = out / "heldout.parquet", out / "train.parquet"
    for path in (heldout_path, train_path):
        if path.exists():
            raise ValueError(f"{path} exists already; completions are frozen once, so give another --out or remove it")
    pair = load_pair(teacher, None, student_dtype="auto")
    rows = load_prompt_dataset(dataset)
    texts = [json.dumps(prompt, sort_keys=True) for prompt in rows["prompt"]]
    rendered = render_prompts(rows, pair.tokenizer, max_prompt_length=max_prompt_length)
    chosen: list[Prompt] = []
    seen: set[str] = set()
    for prompt in reversed(rendered.prompts):
        if len(chosen) < num_prompts and texts[prompt.key] not in seen:
            seen.add(texts[prompt.key])
            chosen.append(prompt)
    chosen.reverse()
    if len(chosen) < num_prompts or chosen[0].key == 0:
        raise ValueError(f"holding {num_prompts} prompts out of {len(rows)} rows leaves nothing to train on")
    training = [row for row in range(chosen[0].key) if texts[row] not in seen]

    decoder = HFDecoder(pair.student, pair.spec.vocab_size)
    engine = ResidentEngine(decoder, None, pair.spec.stop_token_ids, max_batch_rows=16)
    request = RolloutRequest(
        seed=request_seed(seed, "eval", 0),
        max_completion_length=max_completion_length,
        behavior="student",  # the engine's only model is the teacher
        score_teacher=False,
    )
    batch = engine.generate(chosen, request)
    out.mkdir(parents=True, exist_ok=True)
    rows.select(training).to_parquet(str(train_path))
    write_rollouts(heldout_path, batch, {"drafted_by": "teacher", "run_seed": str(seed)})
    return {
        "heldout": str(heldout_path),
        "prompts": len(batch),
        "tokens": batch.num_valid_tokens,
        "first_row": chosen[0].key,
        "train": str(train_path),
        "train_rows": len(training),
        **resources(),
    }


@dataclass(frozen=True)
class HeldoutKL:
    """Sums over the completions of each prompt.

    Attributes:
        kl: [P] sum of KL(T || S) in nats.
        tv: [P] sum of TV(T, S).
        tokens: [P] next-token laws.
    """

    kl: Tensor
    tv: Tensor
    tokens: Tensor

    def summary(self, before: dict[str, Any] | None = None) -> dict[str, Any]:
        """Means over positions with 95% intervals; with an earlier result, also the paired relative change.

        Raises:
            ValueError: If the earlier result is not of the same completions.
        """
        values: dict[str, Any] = {
            "forward_kl": float(self.kl.sum() / self.tokens.sum()),
            "forward_kl_interval": bootstrap_ratio(self.kl, self.tokens),
            "tv": float(self.tv.sum() / self.tokens.sum()),
            "prompts": len(self.kl),
            "tokens": int(self.tokens.sum()),
        }
        if before is not None:
            if before.get("prompt_tokens") != self.tokens.long().tolist():
                raise ValueError("--before measured other completions; give a result of the same --heldout")
            earlier = torch.tensor(before["prompt_kl"], dtype=torch.float64)
            values["relative_change"] = float(self.kl.sum() / earlier.sum() - 1)
            values["relative_change_interval"] = [end - 1 for end in bootstrap_ratio(self.kl, earlier)]
        return values

    def per_prompt(self) -> dict[str, Any]:
        """One entry per prompt, for a later comparison."""
        return {"prompt_kl": self.kl.tolist(), "prompt_tokens": self.tokens.long().tolist()}


@torch.no_grad()
def measure(teacher: str, student: str, heldout: Path, batch_rows: int = 8) -> HeldoutKL:
    """Sum KL(T || S) over the whole vocabulary, in float64, at every position of the frozen completions.

    Args:
        teacher: Folder of the teacher that wrote them.
        student: Student folder.
        heldout: File of :func:`freeze`.
        batch_rows: Completions per forward.

    Raises:
        ValueError: If the pair does not fit, or the teacher is not the one that wrote the completions.
    """
    batch, _ = read_rollouts(heldout)
    models = {"teacher": load_causal_lm(teacher), "student": load_causal_lm(student)}
    spec = resolve_pair(models["student"], models["teacher"], load_tokenizer(student), load_tokenizer(teacher))
    sums: dict[str, list[Tensor]] = {"kl": [], "tv": []}
    for begin in range(0, len(batch), batch_rows):
        rows = range(begin, min(begin + batch_rows, len(batch)))
        micro = collate_rollout(batch, rows, spec.pad_token_id)
        mask = micro["response_mask"]
        inputs = {name: micro[name] for name in ("input_ids", "attention_mask", "position_ids")}
        laws = {}
        for side, model in models.items():
            logits = model(**inputs, use_cache=False, logits_to_keep=mask.shape[1] + 1).logits[:, :-1]
            laws[side] = mask_padding_ids(logits[mask], spec.vocab_size).split(CHUNK_TOKENS)
        kl, tv, chosen = [], [], []
        for teacher_logits, student_logits, ids in zip(
            laws["teacher"], laws["student"], micro["completion_ids"][mask].split(CHUNK_TOKENS), strict=True
        ):
            log_t, log_s = normalized_log_probs(teacher_logits), normalized_log_probs(student_logits)
            kl.append(kl_divergence(log_t, log_s))
            tv.append(total_variation(log_t, log_s))
            chosen.append(log_t.gather(-1, ids.unsqueeze(-1)).squeeze(-1))
        _check_teacher(torch.cat(chosen), micro["student_logprobs"][mask])
        for name, values in (("kl", kl), ("tv", tv)):
            sums[name].append(
                torch.zeros(mask.shape, dtype=torch.float64).masked_scatter(mask, torch.cat(values)).sum(1)
            )
    return HeldoutKL(torch.cat(sums["kl"]), torch.cat(sums["tv"]), batch.lengths.double())


def _check_teacher(got: Tensor, frozen: Tensor) -> None:
    gap = float((got - frozen).abs().max())
    if not gap <= LOGPROB_TOLERANCE:
        raise ValueError(
            f"the teacher's log-probs differ from the frozen ones by up to {gap:.3g} nats; give the teacher that wrote "
            "the completions"
        )


def bootstrap_ratio(numerator: Tensor, denominator: Tensor, draws: int = 10_000, seed: int = 0) -> list[float]:
    """95% percentile interval of sum(numerator) / sum(denominator) over prompts drawn with replacement.

    Args:
        numerator: [P] float64.
        denominator: [P] float64, of the same prompts.
        draws: Bootstrap samples.
        seed: Seed of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(numerator), (draws, len(numerator)), generator=generator)
    ratios = numerator[picks].sum(dim=1) / denominator[picks].sum(dim=1)
    return torch.quantile(ratios, torch.tensor([0.025, 0.975], dtype=ratios.dtype)).tolist()


def resources() -> dict[str, float]:
    """CPU seconds and peak resident memory (GiB) of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return {"cpu_seconds": round(time.process_time(), 1), "peak_gib": round(peak * unit / 2**30, 2)}


if __name__ == "__main__":
    sys.exit(main())
