"""What a pool costs beside a bare engine, and what a weight sync costs, in wall and processor seconds on this CPU.

    python benchmarks/pool_overhead.py                   # three minutes on two cores
    python benchmarks/pool_overhead.py --repeats 1 --prompts 4 --sync_hidden 64    # the same steps, quickly

One JSON line for each part; arms alternate, figures are medians, an overhead is the median of the ratios within each
round. The arms of the rollout, on the lab's pair:

    bare     a resident engine asked for the whole request, 64 rows at once
    units    the same engine asked for the pool's units, one after the other
    pool     one replica behind Ray

`pool` and `units` do the same forwards: their ratio is what processes, messages and scheduling cost. `pool` over `bare`
holds the price of cutting as well: every unit has a tail in which few rows are left.

Processor seconds are those of this process and, for the pool, of the replica's; they tell more than wall seconds where
others use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from saki import lab
from saki.data import render_prompts
from saki.models import load_pair, plain_state, tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine, ServedModel
from saki.rollout.pool import EnginePool, PoolSettings, ray_pool
from saki.rollout.pool.ray_runtime import RayRuntime
from saki.rollout.pool.units import cut_units
from saki.rollout.sync import sync_decoder
from saki.types import RolloutRequest

VOCAB = 4096


def process_seconds(pid: int) -> float:
    """Processor seconds of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
        fields = stream.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(action: Callable[[], Any], pids: tuple[int, ...]) -> tuple[float, float]:
    """Wall and processor seconds of an action."""
    wall, processor = time.perf_counter(), sum(map(process_seconds, pids))
    action()
    return time.perf_counter() - wall, sum(map(process_seconds, pids)) - processor


Rounds = dict[str, list[tuple[float, float]]]


def alternate(arms: dict[str, tuple[Callable[[], Any], tuple[int, ...]]], repeats: int) -> Rounds:
    """Wall and processor seconds of each arm in each round, after one to warm up; every round begins with another."""
    rounds: Rounds = {name: [] for name in arms}
    names = list(arms)
    for turn in range(repeats + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found = measured(*arms[name])
            if turn:
                rounds[name].append(found)
    return rounds


def medians(rounds: Rounds) -> dict[str, dict[str, float]]:
    """Of each arm."""
    return {
        name: {
            kind: round(statistics.median(values[place] for values in found), 4)
            for place, kind in enumerate(("wall_s", "processor_s"))
        }
        for name, found in rounds.items()
    }


def overhead(rounds: Rounds, base: str) -> dict[str, float]:
    """The median over rounds of what the pool took beyond another arm in the same round, as a share of that."""
    return {
        f"pool_over_{base}_{kind}": round(
            statistics.median(
                pool[place] / other[place] - 1 for pool, other in zip(rounds["pool"], rounds[base], strict=True)
            ),
            4,
        )
        for place, kind in enumerate(("wall", "processor"))
    }


def pids_of(pool: EnginePool) -> tuple[int, ...]:
    """This process and the replicas."""
    return os.getpid(), *(seat.handle._place[1] for seat in pool._fleet.seats)  # type: ignore[attr-defined]


def rollout(arguments: argparse.Namespace) -> None:
    """The rollout's arms."""
    pair = load_pair(lab.student_path(), lab.teacher_path(), teacher_dtype=torch.float32)
    rows = [{"prompt": problem.prompt} for problem in lab.training_problems(arguments.prompts, 0)]
    prompts = render_prompts(rows, pair.tokenizer, max_prompt_length=64).prompts
    request = RolloutRequest(seed=1, max_completion_length=64, num_generations=8, trust_region_radius=0.02)
    vocab, stops = pair.spec.vocab_size, pair.spec.stop_token_ids
    bare = ResidentEngine(HFDecoder(pair.student, vocab), HFDecoder(pair.teacher, vocab), stops)  # type: ignore[arg-type]
    sources = [ServedModel(str(path), vocab) for path in (lab.student_path(), lab.teacher_path())]
    pool = ray_pool(sources[0], sources[1], stops, PoolSettings(unit_rows=arguments.unit_rows, batch_rows=64))
    units = cut_units(prompts, request, arguments.unit_rows)
    me = (os.getpid(),)
    found = alternate(
        {
            "bare": (lambda: bare.generate(prompts, request), me),
            "units": (lambda: [bare.generate(unit.prompts, request) for unit in units], me),
            "pool": (lambda: pool.generate(prompts, request), pids_of(pool)),
        },
        arguments.repeats,
    )
    tokens = bare.generate(prompts, request).num_valid_tokens
    pool.close()
    facts = {"rows": 8 * len(prompts), "units": len(units), "tokens": tokens, "repeats": arguments.repeats}
    line = {"part": "rollout", **facts, "arms": medians(found)}
    print(json.dumps({**line, **overhead(found, "bare"), **overhead(found, "units")}), flush=True)


def sync(arguments: argparse.Namespace) -> None:
    """Syncs of a larger model: within a process, and to one and two replicas."""
    models = [
        tiny_qwen3(VOCAB, hidden=arguments.sync_hidden, layers=8, heads=8, kv_heads=4, seed=seed, scale=0.02)
        for seed in (1, 2)
    ]
    weights = [list(plain_state(model)) for model in models]
    with tempfile.TemporaryDirectory() as folder:
        models[0].save_pretrained(folder)
        bare = HFDecoder(models[0], VOCAB)
        pools = {
            count: ray_pool(ServedModel(folder, VOCAB), None, [0], PoolSettings(replicas=count, cpus=0.5))
            for count in (1, 2)
        }
        versions = iter(range(1, 10_000))

        def send(sync_weights: Callable[[Any, int], Any]) -> Callable[[], Any]:
            def action() -> Any:
                version = next(versions)
                return sync_weights(weights[version % 2], version)

            return action

        arms = {"within_process": (send(lambda w, v: sync_decoder(bare, iter(w), v)), (os.getpid(),))}
        for count, pool in pools.items():
            arms[f"pool_{count}"] = (send(pool.sync_student), pids_of(pool))
        found = medians(alternate(arms, arguments.repeats))
        megabytes = pools[1].sync_student(weights[0], next(versions)).num_bytes / 1e6
        for pool in pools.values():
            pool.close()
    per_mb = {f"{name}_ms_per_mb": round(1000 * values["wall_s"] / megabytes, 3) for name, values in found.items()}
    print(json.dumps({"part": "sync", "megabytes": round(megabytes, 1), "arms": found, **per_mb}), flush=True)


def main() -> None:
    """Both parts on one Ray runtime."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("both", "rollout", "sync"), default="both")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--unit_rows", type=int, default=128)
    parser.add_argument("--sync_hidden", type=int, default=512)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runtime = RayRuntime(PoolSettings(replicas=3))
    try:
        if arguments.part != "sync":
            rollout(arguments)
        if arguments.part != "rollout":
            sync(arguments)
    finally:
        runtime.close()


if __name__ == "__main__":
    main()
