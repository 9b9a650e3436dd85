"""One check of at most eight minutes on one GPU, without network: exactness first, then speed.

    python benchmarks/gpu_check.py                # on a GPU; --seconds 480 is the limit
    python benchmarks/gpu_check.py --tiny         # the same steps with tiny shapes, on whatever device is there

Prints one JSON line per result, so that what is there stays there if the time runs out. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch

from saki.benchmarking import bench_bridge, bench_rollout, make_pair, make_workload, open_arms
from saki.models import tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine, SequentialSampler
from saki.types import Prompt, RolloutRequest

BLOCK_SIZES = (1, 2, 4, 8)
KL_TOLERANCE = 2e-4  # how far below the radius a float32 bridge may stay, relative
DBETA_TOLERANCE = 1e-3

ARMS = ("student_only", "exact_q")
LARGE = [(1000, 32, 64), (1000, 128, 64), (3500, 32, 64), (3500, 128, 64)]
"""(context, batch, completion length); the context counts both."""
SAMPLES_PER_PROMPT = 8


def say(**line: Any) -> None:
    """One JSON line."""
    print(json.dumps(line), flush=True)


def check_identity(device: torch.device) -> bool:
    """Engine on the device against the sequential sampler, float64 tiny models, for several K."""
    models = {
        side: tiny_qwen3(48, seed=seed, layers=layers, dtype=torch.float64, scale=0.3).to(device)
        for side, seed, layers in (("student", 1, 2), ("teacher", 2, 3))
    }
    prompts = [Prompt(key=key, token_ids=tuple(range(1 + key, 4 + 2 * key))) for key in range(3)]

    def request(block_size: int) -> RolloutRequest:
        return RolloutRequest(
            seed=7, max_completion_length=16, num_generations=2, trust_region_radius=0.1, block_size=block_size
        )

    def logits(model: Any) -> Any:
        return lambda ids: model(input_ids=ids.to(device)).logits[0, -1].cpu()

    wanted = SequentialSampler(logits(models["student"]), logits(models["teacher"]), (5,)).generate(prompts, request(1))
    engine = ResidentEngine(*(HFDecoder(model, 48) for model in models.values()), (5,), max_batch_rows=4)
    passed = True
    for block_size in BLOCK_SIZES:
        got = engine.generate(prompts, request(block_size))
        mask = wanted.response_mask
        width = min(mask.shape[1], got.response_mask.shape[1])
        same = (
            got.response_mask.shape == mask.shape
            and torch.equal(got.completion_ids, wanted.completion_ids)
            and torch.equal(got.correction_mask, wanted.correction_mask)
        )
        gap = (got.beta[:, :width] - wanted.beta[:, :width])[mask[:, :width]].abs().max() if same else torch.inf
        close = bool(float(gap) < 1e-8)
        passed = passed and same and close
        say(
            check="identity",
            block_size=block_size,
            passed=same and close,
            tokens=got.num_valid_tokens,
            corrections=int(got.correction_mask.sum()),
            max_abs_dbeta=float(gap),
        )
    return passed


def check_bridge(device: torch.device, vocabularies: tuple[int, ...], repeats: int) -> bool:
    """The solver on the device against float64: KL never above the radius, beta close; and its time."""
    radius, passed = 0.02, True
    result = bench_bridge(vocabularies, radius=radius, repeats=repeats, device=device)
    for vocab, entry in result["vocab"].items():
        good = -KL_TOLERANCE * radius <= entry["max_kl_excess"] <= 0 and entry["max_abs_dbeta"] <= DBETA_TOLERANCE
        passed = passed and good
        say(check="bridge", vocab=int(vocab), passed=good, **entry)
    return passed


def bench(device: torch.device, tiny: bool, deadline: float) -> None:
    """Rollout speed, configuration by configuration until the time is over."""
    preset = "tiny" if tiny else "qwen3-shapes"
    pair = make_pair(preset, dtype=torch.float32 if tiny else torch.bfloat16, device=device)
    decoders = pair.decoder("student"), pair.decoder("teacher")
    cases = [(24, 8, 16)] if tiny else LARGE
    took = 0.0
    for context, batch, length in cases:
        case = {"context": context, "batch_size": batch, "completion_length": length}
        if time.perf_counter() + took > deadline:
            say(bench="rollout", **case, skipped="no time is left")
            continue
        begin = time.perf_counter()
        work = make_workload(
            pair,
            requests=batch,
            batch_size=batch,
            samples_per_prompt=SAMPLES_PER_PROMPT,
            prompt_length=context - length,
            lengths=(length,) * batch,
            radius=0.02,
            seed=0,
        )
        try:
            with open_arms(ARMS, pair, work, decoders=decoders) as (arms, skipped):
                result = bench_rollout(arms, work, device, repeats=3, deadline=begin + (deadline - begin) / 2)
        except torch.OutOfMemoryError as error:
            say(bench="rollout", **case, skipped=f"out of memory: {str(error).splitlines()[0]}")
            result = None
        if result is not None:
            say(bench="rollout", **case, models=pair.description, skipped=skipped, **result)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        took = time.perf_counter() - begin


def main() -> int:
    """Run every step; 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=480.0, help="limit on the whole check")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes; so it runs without a GPU in any case")
    args = parser.parse_args()
    begin = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tiny = args.tiny or device.type == "cpu"
    if device.type == "cpu":
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    say(device=name, torch=str(torch.__version__), tiny=tiny, seconds=args.seconds)
    passed = check_identity(device)
    passed = check_bridge(device, (4096,) if tiny else (4096, 49_152, 152_064), repeats=2 if tiny else 5) and passed
    bench(device, tiny, begin + 0.9 * args.seconds)
    say(done=True, passed=passed, wall_s=round(time.perf_counter() - begin, 1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
