"""What ranks are asked to do in tests: each function runs on every rank, or in the test's own process for one rank."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from saki.lab import student_path, teacher_path, training_problems
from saki.models import load_causal_lm, load_tokenizer, plain_state
from saki.rollout import read_rollouts
from saki.rollout.protocol import EngineStats, SyncReport
from saki.training import SakiConfig, SakiTrainer
from tests.training.scripted import ScriptedEngine, step_gradient

PROMPTS, SAMPLES, MICRO = 4, 2, 2


class RecordedEngine:
    """Serves rollouts that were recorded once, to whichever rank asks for a part of them, so that only updates differ.

    Args:
        folder: Rollout files of one rank's run.
        silent: Completions (prompt key, sample) that are to have no valid token.
    """

    def __init__(self, folder: Path, silent: frozenset[tuple[int, int]] = frozenset()) -> None:
        self.batches = {}
        for path in sorted(folder.glob("*.parquet")):
            batch, _ = read_rollouts(path)
            keys = list(zip(batch.prompt_keys.tolist(), batch.sample_indices.tolist(), strict=True))
            for row in (row for row, key in enumerate(keys) if key in silent):
                batch.response_mask[row] = False
            self.batches[batch.seed] = batch, {key: row for row, key in enumerate(keys)}

    def generate(self, prompts, request, progress=None):
        batch, rows = self.batches[request.seed]
        return batch.select([rows[prompt.key, sample] for prompt in prompts for sample in prompt.sample_indices])

    def score(self, batch, model="teacher"):
        raise NotImplementedError

    def sync_student(self, weights, version):
        return SyncReport(version, "", 0.0, 0.0)

    def student_checksum(self):
        return ""

    def teacher_checksum(self):
        return None

    def stats(self):
        return EngineStats()

    def close(self):
        pass


class Gradients(TrainerCallback):
    """Keeps the whole gradients of the first optimizer step, under the names of a plain model."""

    def __init__(self):
        self.values = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.values is None:
            named = list(getattr(model, "module", model).named_parameters())
            self.sharded = [isinstance(p, DTensor) for _, p in named]
            self.values = {name: whole(p.grad).clone() for name, p in named if p.grad is not None}


class ShardedTrainer(SakiTrainer):
    """FSDP2 by accelerate's own hand, which drops it without a word where there is no accelerator."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Qwen3DecoderLayer"],
            reshard_after_forward=True,
            state_dict_type="FULL_STATE_DICT",
            cpu_ram_efficient_loading=False,
        )
        self.is_fsdp_enabled = True


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def lab_trainer(folder: Path, engine: Any = None, kind: type[SakiTrainer] = SakiTrainer, **changes: Any) -> SakiTrainer:
    """The embedded pair in float64."""
    options = {name: changes.pop(name) for name in ("callbacks", "eval_dataset", "eval_grader") if name in changes}
    dtype = changes.pop("dtype", torch.float64)
    values = {
        "output_dir": str(folder),
        "max_steps": 1,
        "prompts_per_step": PROMPTS,
        "num_generations": SAMPLES,
        "per_device_train_batch_size": MICRO,
        "max_completion_length": 24,
        "trust_region_radius": 0.3,
        "learning_rate": 1e-3,
        "loss_chunk_tokens": 16,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return kind(
        load_causal_lm(student_path(), dtype=dtype),
        load_causal_lm(teacher_path(), dtype=dtype),
        SakiConfig(**(values | changes)),
        [{"prompt": problem.prompt} for problem in training_problems(24, seed=0)],
        processing_class=load_tokenizer(student_path()),
        engine=engine,
        **options,
    )


def weights(run: SakiTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in plain_state(run.accelerator.unwrap_model(run.model))}


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def first_step(folder: Path, engine: Any, kind: type[SakiTrainer] = SakiTrainer, **changes: Any) -> dict[str, Any]:
    """One step: its gradient, the number of this rank's tokens, and what was logged."""
    keep = Gradients()
    run = lab_trainer(folder, engine, kind, callbacks=[keep], max_grad_norm=0.0, **changes)
    run.train()
    batch = run.rollouts._last[0]
    return {"gradient": keep.values, "sharded": keep.sharded, "tokens": batch.num_valid_tokens, "log": run.state.log_history[0]}


def gradients(folder: Path, recorded: Path, silent: frozenset[tuple[int, int]]) -> dict[str, Any]:
    """A step on recorded rollouts, plain and where some completions have no tokens; and one with real engines."""
    result = {
        "plain": first_step(folder / "plain", RecordedEngine(recorded)),
        "silent": first_step(folder / "silent", RecordedEngine(recorded, silent)),
        "real": first_step(folder / "real", None),
    }
    result["rollouts"] = rollouts_of(folder / "real")
    return result


def rollouts_of(folder: Path, step: int = 1) -> dict[tuple[int, int], dict[str, Any]]:
    """Every completion of a step that is on disk, whichever rank has written it."""
    found = {}
    for path in sorted((folder / "rollouts").glob(f"step-{step:06d}*.parquet")):
        batch, _ = read_rollouts(path)
        for row in range(len(batch)):
            mask = batch.response_mask[row]
            found[int(batch.prompt_keys[row]), int(batch.sample_indices[row])] = {
                "ids": batch.completion_token_ids(row),
                "proposals": batch.proposal_ids[row][mask].tolist(),
                "corrected": batch.correction_mask[row][mask].tolist(),
                "reason": batch.finish_reasons[row],
                "student_logprobs": batch.student_logprobs[row][mask],
            }
    return found


def scripted_step(folder: Path, lengths: dict[tuple[int, int], int]) -> dict[str, Any]:
    """The gradient of one step of the tiny pair on scripted rollouts."""
    engine = ScriptedEngine(lengths)
    gradient = step_gradient(folder / "run", engine, per_device_train_batch_size=2)
    (batch,) = engine.batches
    return {"gradient": gradient, "tokens": batch.num_valid_tokens}
