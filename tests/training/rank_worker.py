"""One rank of a distributed step: ``python -m tests.training.rank_worker FOLDER "prompt,sample,length;..."``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.training.scripted import ScriptedEngine, step_gradient


def main(folder: Path, script: str) -> None:
    """Run the step and save this rank's gradient and token count."""
    lengths = {}
    for entry in script.split(";"):
        prompt, sample, length = map(int, entry.split(","))
        lengths[prompt, sample] = length
    engine = ScriptedEngine(lengths)
    gradient = step_gradient(folder, engine, per_device_train_batch_size=2)
    (batch,) = engine.batches
    torch.save({**gradient, "num_valid": batch.num_valid_tokens}, folder / f"rank-{os.environ['RANK']}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
