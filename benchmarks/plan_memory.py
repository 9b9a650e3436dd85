"""Peak memory of a rollout, or of training steps, on a CPU: predicted by ``saki.planning`` and measured.

    python benchmarks/plan_memory.py STUDENT TEACHER              # a rollout
    python benchmarks/plan_memory.py STUDENT TEACHER --train      # two steps; a rollout is part of each

Folders of float32 checkpoints. A child process loads them; its peak resident set above what it had before loading is
what the prediction is held against. Linux only (``/proc/self``). Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHAPE = {"prompt_length": 100, "max_completion_length": 64, "rollout_batch_rows": 8, "block_size": 8}


def resident(key: str) -> int:
    """Bytes of an entry of this process's status: VmRSS or VmHWM, its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"this system does not report {key}")


def child(student: str, teacher: str, train: bool) -> dict[str, Any]:
    """Load, run, and say what it took."""
    import torch

    import saki.rollout
    import saki.training
    from saki.models import load_pair
    from saki.types import Prompt, RolloutRequest

    torch.set_num_threads(1)
    ids = torch.randint(100, 40_000, (8, SHAPE["prompt_length"]), generator=torch.Generator().manual_seed(0))
    baseline = resident("VmRSS")
    if train:
        prompt_length = _train(student, teacher, ids)
        return {"baseline": baseline, "peak": resident("VmHWM"), "prompt_length": prompt_length}
    pair = load_pair(student, teacher)
    loaded = resident("VmRSS")
    size = pair.spec.vocab_size
    engine = saki.rollout.ResidentEngine(
        saki.rollout.HFDecoder(pair.student, size),
        saki.rollout.HFDecoder(pair.teacher, size),
        pair.spec.stop_token_ids,
        max_batch_rows=SHAPE["rollout_batch_rows"],
    )
    prompts = [Prompt(key=key, token_ids=tuple(row)) for key, row in enumerate(ids.tolist())]
    request = RolloutRequest(
        seed=1,
        max_completion_length=SHAPE["max_completion_length"],
        num_generations=1,
        trust_region_radius=0.02,
        block_size=SHAPE["block_size"],
    )
    tokens = engine.generate(prompts, request).num_valid_tokens
    return {"baseline": baseline, "loaded": loaded, "peak": resident("VmHWM"), "tokens": tokens}


def _train(student: str, teacher: str, ids: Any) -> int:
    """Two steps; the tokens of the longest prompt, which is what the plan is then asked for."""
    from saki.models import load_tokenizer
    from saki.training import SakiConfig, SakiTrainer

    # Text comes back as other ids than it was made from, so the length is counted again below.
    tokenizer = load_tokenizer(student)
    rows = [{"prompt": tokenizer.decode(row[:-4])} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        args = SakiConfig(
            output_dir=folder,
            max_steps=2,
            prompts_per_step=8,
            num_generations=1,
            per_device_train_batch_size=8,
            rollout_batch_rows=SHAPE["rollout_batch_rows"],
            max_prompt_length=2 * SHAPE["prompt_length"],
            max_completion_length=SHAPE["max_completion_length"],
            loss_chunk_tokens=64,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = SakiTrainer(model=student, teacher_model=teacher, args=args, train_dataset=rows)
        trainer.train()
        return max(len(prompt.token_ids) for prompt in trainer.prompts.prompts)


def predict(student: str, teacher: str, train: bool, prompt_length: int) -> dict[str, Any]:
    """The plan of the same run."""
    from saki.planning import PRESETS, PlanRequest, device_memory, load_shape

    request = PlanRequest(
        load_shape(student),
        load_shape(teacher),
        PRESETS["cpu-1-core"],
        train=train,
        prompts_per_step=8,
        num_generations=1,
        rollout_dtype="float32",
        teacher_dtype="float32",
        bf16=False,
        loss_chunk_tokens=64,
        **{**SHAPE, "prompt_length": prompt_length},
    )
    memory = device_memory(request)[0]
    return {"peak": memory.peak, "items": {item.name: item.num_bytes for item in memory.items}}


def main() -> None:
    """Measure in a child, predict here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("student")
    parser.add_argument("teacher")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.student, args.teacher, args.train)))
        return
    words = [sys.executable, __file__, args.student, args.teacher, "--child", *(["--train"] if args.train else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    measured = json.loads(output.splitlines()[-1])
    predicted = predict(args.student, args.teacher, args.train, measured.get("prompt_length", SHAPE["prompt_length"]))
    above = measured["peak"] - measured["baseline"]
    print(
        json.dumps(
            {
                "measured_bytes": above,
                "predicted_bytes": predicted["peak"],
                "ratio": predicted["peak"] / above,
                "measured": measured,
                "items": predicted["items"],
            }
        )
    )


if __name__ == "__main__":
    main()
