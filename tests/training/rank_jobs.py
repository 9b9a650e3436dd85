"""What ranks are asked to do in tests: each function runs on every rank, or in the test's own process for one rank."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from saki.lab import student_path, teacher_path, training_problems
from saki.models import load_causal_lm, load_tokenizer, plain_state
from saki.probe import write_probe
from saki.rollout import model_checksum, read_rollouts
from saki.training import SakiConfig, SakiTrainer
from tests.probing import tiny_probe
from tests.tiny import tiny_pair, tiny_rows, tiny_tokenizer
from tests.training.scripted import ScriptedEngine, WrittenEngine, step_gradient

PROMPTS, SAMPLES, MICRO = 4, 2, 2


class RecordedEngine(WrittenEngine):
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
        # Whoever asks for the state copies the smaller state into it, so both must say so.
        state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
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
    return {
        "gradient": keep.values,
        "sharded": keep.sharded,
        "tokens": batch.num_valid_tokens,
        "log": run.state.log_history[0],
    }


OF_THE_STEP = {"entropy_aware": {"entropy_quantile": 0.8}, "opsa": {"token_fraction": 0.2}}
"""Methods whose routers look at the whole step, with options."""


def of_the_step(folder: Path, recorded: Path, method: str) -> dict[str, Any]:
    """A step on recorded rollouts by one of :data:`OF_THE_STEP`."""
    engine = RecordedEngine(recorded)
    return first_step(folder / method, engine, method=method, method_options=OF_THE_STEP[method])


def single_steps(folder: Path, recorded: Path, silent: frozenset[tuple[int, int]]) -> dict[str, Any]:
    """Steps on recorded rollouts, plain, where some completions have no tokens, and of methods that look at the whole
    step; one with real engines; an evaluation; and a step that fails on the last rank."""
    result = {
        "plain": first_step(folder / "plain", RecordedEngine(recorded)),
        "silent": first_step(folder / "silent", RecordedEngine(recorded, silent)),
        **{name: of_the_step(folder, recorded, name) for name in OF_THE_STEP},
        "real": first_step(folder / "real", None),
    }
    result["rollouts"] = rollouts_of(folder / "real")
    result["evaluation"] = evaluation(folder / "evaluation")
    result["failure"] = failure(folder / "failure")
    return result


def evaluation(folder: Path) -> dict[str, float]:
    """What the initial student is measured at; five prompts, so that ranks have unequal shares."""
    rows = [{"prompt": problem.prompt, "answer": problem.answer} for problem in training_problems(5, seed=1)]
    run = lab_trainer(folder, eval_dataset=rows, eval_grader=lambda text, answer: len(text) % 2 == 0)
    return run.evaluate()


def failure(folder: Path) -> str:
    """How a run ends whose last rank's engine fails."""
    run = lab_trainer(folder)
    if run.ranks.rank == run.ranks.size - 1:

        def fail(*args):
            raise ValueError("this engine is broken")

        run.engine.generate = fail
    try:
        run.train()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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


def resume(folder: Path, source: Path, step: int, engine: Any, kind: type[SakiTrainer] = SakiTrainer, **changes: Any):
    """A run that goes on in a copy of another's folder, from the checkpoint of a step."""
    if int(torch.distributed.get_rank() if torch.distributed.is_initialized() else 0) == 0:
        shutil.copytree(source, folder)
        for path in (folder / "checkpoints").iterdir():
            if path.name != f"checkpoint-{step}":
                shutil.rmtree(path)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    run = lab_trainer(folder, engine, kind, save_strategy="steps", save_steps=10, **changes)
    run.train(resume_from_checkpoint=True)
    return run


def long_runs(folder: Path, alone: Path) -> dict[str, Any]:
    """Twenty steps on recorded rollouts under DDP and FSDP2, and runs that go on with another number of ranks."""
    recorded, twenty = RecordedEngine(alone / "rollouts"), {"max_steps": 20}
    saving = {"save_strategy": "steps", "save_steps": 10, **twenty}
    result: dict[str, Any] = {}
    run = lab_trainer(folder / "ddp", recorded, **saving)
    run.train()
    result["ddp"] = weights(run)
    resume(folder / "resumed", alone, 10, None, max_steps=12)
    result["resumed"] = [rollouts_of(folder / "resumed", step) for step in (11, 12)], logged(folder / "resumed")[-2:]
    keep = Gradients()
    run = lab_trainer(folder / "fsdp", recorded, ShardedTrainer, callbacks=[keep], max_grad_norm=0.0, **twenty)
    run.train()
    result["fsdp_gradient"], result["fsdp_sharded"] = keep.values, keep.sharded
    run = lab_trainer(folder / "fsdp", recorded, ShardedTrainer, **saving)
    run.train()
    result["fsdp"], result["fsdp_log"] = weights(run), run.state.log_history
    run.save_model(str(folder / "model"))
    run.accelerator.wait_for_everyone()
    saved = load_causal_lm(folder / "model", dtype=torch.float64)
    result["saved"] = {name: tensor.clone() for name, tensor in plain_state(saved)}
    run = resume(folder / "fsdp_resumed", folder / "fsdp", 10, recorded, ShardedTrainer, **twenty)
    result["fsdp_resumed"] = weights(run)
    recomputed = {"gradient_checkpointing": True, "loss_chunk_tokens": 5}
    result["fsdp_recomputed"] = first_step(folder / "fsdp_recomputed", recorded, ShardedTrainer, **recomputed)
    result["refusals"] = [
        refusal(folder / "crossed_fsdp", folder / "ddp", ShardedTrainer),
        refusal(folder / "crossed_ddp", folder / "fsdp", SakiTrainer),
    ]
    result["probe"] = probed(folder / "probed")
    result["streamed"] = streamed()
    return result


def refusal(folder: Path, source: Path, kind: type[SakiTrainer]) -> str:
    """How a run ends that is to go on from a checkpoint of the other kind."""
    if kind is SakiTrainer:
        PartialState().distributed_type = DistributedType.MULTI_CPU
    try:
        resume(folder, source, 10, None, kind, max_steps=11)
    except ValueError as error:
        return str(error)
    return ""


def probed(folder: Path) -> dict[str, Any]:
    """Two sharded steps of the tiny pair with a real engine, a probe and an evaluation after each."""
    if torch.distributed.get_rank() == 0:
        write_probe(folder.with_name("probe"), tiny_probe(torch.float64))
    torch.distributed.barrier()
    student, teacher = tiny_pair(torch.float64)
    args = SakiConfig(
        output_dir=str(folder), probe=str(folder.with_name("probe")), probe_steps=1, max_steps=2, eval_strategy="steps",
        eval_steps=1, prompts_per_step=2, num_generations=2, per_device_train_batch_size=2, max_completion_length=6,
        learning_rate=1e-2, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    run = ShardedTrainer(
        student, teacher, args, tiny_rows(4), eval_dataset=tiny_rows(3), processing_class=tiny_tokenizer()
    )
    run.train()
    run._sync_engine()
    return {
        "engine": run.engine.student_checksum(),
        "trainer": model_checksum(plain_state(run.model)),
        "probe": sorted(path.name for path in (folder / "probe").iterdir()),
        "log": logged(folder),
    }


def streamed() -> dict[str, Any]:
    """What streams out of sharded models, plain and with an adapter, beside what streams out of the same unsharded."""
    live: list[weakref.ref[torch.Tensor]] = []
    most = 0
    gather = DTensor.full_tensor

    def counted(self: DTensor, **kwargs: Any) -> torch.Tensor:
        nonlocal most
        tensor = gather(self, **kwargs)
        live.append(weakref.ref(tensor))
        most = max(most, sum(each() is not None for each in live))
        return tensor

    result: dict[str, Any] = {}
    for name, (plain, sharded) in {
        "plain": [load_causal_lm(student_path(), dtype=torch.float32) for _ in range(2)],
        "adapter": [adapted(), adapted()],
    }.items():
        for parameter in (*plain.parameters(), *sharded.parameters()):
            parameter.data *= 1.001  # the shipped weights are bfloat16 numbers
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for layer in sharded.get_decoder().layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(sharded, mp_policy=policy)
        num_sharded = sum(isinstance(parameter, DTensor) for parameter in sharded.parameters())
        sharded(input_ids=torch.tensor([[1, 2, 3]]))  # leaves some parameters gathered, in bfloat16
        expected = dict(plain_state(plain))
        DTensor.full_tensor, most = counted, 0
        live.clear()
        try:
            equal = {}
            for key, tensor in plain_state(sharded):
                equal[key] = tensor.dtype == expected[key].dtype and torch.equal(tensor, expected[key])
                del tensor
        finally:
            DTensor.full_tensor = gather
        result[name] = {
            "names": list(equal) == list(expected),
            "equal": all(equal.values()),
            "sharded": num_sharded,
            "gathered": len(live),
            "most": most,
        }
    return result


def adapted() -> Any:
    """The embedded student with an adapter that does something."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    return get_peft_model(load_causal_lm(student_path(), dtype=torch.float32), config)
