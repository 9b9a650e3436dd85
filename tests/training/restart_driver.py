"""A process that trains the tiny pair in forks of itself, each killed where it is told to be.

It reads one JSON request a line and answers each with one: ``{"folder": ..., "kill": null | {"at": kind, "count": n} |
{"seconds": s}}`` -> ``{"signal": 9 or 0, "code": exit code, "counts": {kind: calls}, "seconds": s}``. Imports are paid
once. Two sorts of moments are counted: file events of Python inside the run folder (``open``, ``os.rename``, ...), at
which the fork dies before the event, and writers (``torch.save``, ``parquet``, ...), which die with half of it written.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import modeling_utils

import saki.rollout.storage
import saki.training.callbacks
import saki.training.rewind
import saki.training.whole_checkpoints
from saki.cli.train import has_checkpoint
from saki.files import append_text, write_text
from saki.training import SakiConfig, SakiTrainer
from saki.training.checkpoint import MANIFEST, write_manifest
from tests.tiny import tiny_pair, tiny_rows, tiny_tokenizer

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
WRITERS = ("torch.save", "safetensors", "parquet", "append", "cut", "manifest")


def train(folder: Path) -> None:
    """A run of six steps, two an epoch, a checkpoint every two steps; resumed where there is something to resume."""
    torch.set_num_threads(1)
    student, teacher = tiny_pair()
    config = SakiConfig(
        output_dir=str(folder),
        max_steps=6,
        prompts_per_step=4,
        num_generations=2,
        per_device_train_batch_size=4,
        max_prompt_length=16,
        max_completion_length=8,
        trust_region_radius=0.3,
        radius_anneal_steps=4,
        learning_rate=1e-2,
        save_steps=2,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
    )
    trainer = SakiTrainer(
        student, teacher, config, tiny_rows(9), eval_dataset=tiny_rows(3), processing_class=tiny_tokenizer()
    )
    trainer.train(resume_from_checkpoint=has_checkpoint(folder))
    trainer.save_model(str(folder / "model"))


class Killer:
    """Counts moments, and kills this process at one of them."""

    def __init__(self, folder: Path, kill: dict | None) -> None:
        self.folder, self.kill = str(folder), kill or {}
        self.counts: dict[str, int] = {}
        if "seconds" in self.kill:
            threading.Timer(self.kill["seconds"], self.die).start()
        sys.addaudithook(self.audit)
        torch.save = self.halved("torch.save", torch.save, 1)
        modeling_utils.safe_save_file = self.halved("safetensors", modeling_utils.safe_save_file, 1)
        pq.write_table = self.halved("parquet", pq.write_table, 1)
        saki.training.callbacks.append_text = self.half_text("append", append_text)
        saki.training.rewind.write_text = self.half_text("cut", write_text)
        saki.training.whole_checkpoints.write_manifest = self.half_manifest

    @staticmethod
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def reached(self, kind: str) -> bool:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return self.kill.get("at") == kind and self.counts[kind] == self.kill["count"]

    def audit(self, event: str, args: tuple) -> None:
        # A name without a folder belongs to shutil.rmtree, which walks by descriptors.
        if event not in EVENTS or not isinstance(args[0], str):
            return
        if (args[0].startswith(self.folder) or os.sep not in args[0]) and self.reached(event):
            self.die()

    def halved(self, kind, write, place):
        def wrapper(*args, **kwargs):
            result = write(*args, **kwargs)
            if self.reached(kind):
                os.truncate(args[place], os.path.getsize(args[place]) // 2)
                self.die()
            return result

        return wrapper

    def half_text(self, kind, write):
        def wrapper(path, text):
            if self.reached(kind):
                half = text[: len(text) // 2]
                if kind == "append":
                    with path.open("a") as stream:
                        stream.write(half)
                else:
                    path.with_name(f".{path.name}.unfinished").write_text(half)
                self.die()
            write(path, text)

        return wrapper

    def half_manifest(self, folder, facts):
        write_manifest(folder, facts)
        if self.reached("manifest"):
            os.truncate(folder / MANIFEST, 100)
            self.die()


def child(folder: Path, kill: dict | None, counts_file: Path) -> int:
    killer = Killer(folder, kill)
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        train(folder)
    except BaseException:
        logging.exception("failed")
        return 1
    counts = dict(killer.counts)
    counts_file.write_text(json.dumps(counts))
    return 0


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        counts_file = Path(f"{folder}.counts")
        begin = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(child(folder, request["kill"], counts_file))
        _, status = os.waitpid(pid, 0)
        answer = {
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "code": os.waitstatus_to_exitcode(status),
            "counts": json.loads(counts_file.read_text()) if counts_file.exists() else {},
            "seconds": time.perf_counter() - begin,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
