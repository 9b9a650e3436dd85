"""The trainer: the paper's objective by hand, invariances, annealing, resume, and what the library's features do."""

from __future__ import annotations

import json
import math

import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from saki.methods import REVERSE_KL, Method, get_method
from saki.models import load_causal_lm, plain_state, resolve_pair
from saki.objectives import route_to_first
from saki.rollout import read_rollouts
from saki.training import SakiConfig, SakiTrainer, TrainingDivergedError
from tests.tiny import VOCAB, tiny_pair, tiny_rows, tiny_tokenizer
from tests.training.scripted import Gradients


def config(folder, **changes):
    values = {
        "output_dir": str(folder),
        "max_steps": 2,
        "prompts_per_step": 4,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_prompt_length": 16,
        "max_completion_length": 8,
        "trust_region_radius": 0.3,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return SakiConfig(**(values | changes))


def trainer(folder, dtype=torch.float32, method=None, num_rows=12, callbacks=None, pair=None, **changes):
    student, teacher = pair or tiny_pair(dtype)
    options = {name: changes.pop(name) for name in ("peft_config", "eval_dataset", "eval_grader") if name in changes}
    return SakiTrainer(
        model=student,
        teacher_model=teacher,
        args=config(folder, **changes),
        train_dataset=tiny_rows(num_rows),
        processing_class=tiny_tokenizer(),
        method=method,
        callbacks=callbacks,
        **options,
    )


def weights(run):
    return {name: tensor.clone() for name, tensor in plain_state(run.model)}


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_equal_weights(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_the_loss_is_equation_16(tmp_path):
    """Loss and gradient of the first step, from the stored rollout and a plain forward of the initial student."""
    keep = Gradients()
    run = trainer(tmp_path, torch.float64, max_steps=1, callbacks=[keep], max_grad_norm=0.0, advantage_clip=None)
    student, _ = tiny_pair(torch.float64)
    run.train()
    batch, _ = read_rollouts(tmp_path / "rollouts" / "step-000001.parquet")
    assert batch.correction_mask.any()
    losses = []
    for row in range(len(batch)):
        prompt, completion = batch.prompt_token_ids(row), batch.completion_token_ids(row)
        logits = student(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1, :VOCAB]
        log_pi = torch.log_softmax(logits, dim=-1)
        for t, y in enumerate(completion):
            if batch.correction_mask[row, t]:
                losses.append(-log_pi[t, batch.teacher_mode_ids[row, t]])
            else:
                advantage = -(log_pi[t, y].detach() - batch.teacher_logprobs[row, t])
                losses.append(-advantage * log_pi[t, y])
    loss = torch.stack(losses).sum() / batch.num_valid_tokens
    loss.backward()
    # The library adds losses up in float32; the gradients below are exact.
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    for name, parameter in student.named_parameters():
        assert torch.allclose(keep.values[name], parameter.grad, atol=1e-10), name


def test_micro_batches_do_not_change_the_gradient(tmp_path):
    reference = None
    for size in (8, 4, 1):
        keep = Gradients()
        folder = tmp_path / str(size)
        run = trainer(
            folder,
            torch.float64,
            max_steps=1,
            per_device_train_batch_size=size,
            callbacks=[keep],
            max_grad_norm=0.0,
            loss_chunk_tokens=5,
        )
        assert run.args.gradient_accumulation_steps == 8 // size
        run.train()
        reference = reference or keep.values
        for name, value in keep.values.items():
            assert torch.allclose(value, reference[name], atol=1e-10), name


def test_radius_zero_is_opd_to_the_bit(tmp_path):
    trained = []
    for name in ("saki", "opd"):
        run = trainer(tmp_path / name, method=get_method(name), trust_region_radius=0.0)
        run.train()
        trained.append(weights(run))
    assert_equal_weights(*trained)


def test_tokens_a_second_are_those_of_generation_alone(tmp_path):
    """In a student rollout the engine also scores with the teacher, which has a time of its own."""
    trainer(tmp_path, method=get_method("opd"), max_steps=2).train()
    for line in metrics(tmp_path):
        assert line["time/score_s"] > 0
        tokens = line["rollout/mean_length"] * 8
        assert line["time/tokens_per_s"] == pytest.approx(tokens / line["time/rollout_s"])


def test_learning_rate_zero_changes_nothing(tmp_path):
    run = trainer(tmp_path, learning_rate=0.0)
    before = weights(run)
    run.train()
    assert_equal_weights(weights(run), before)


def test_annealing_ends_corrections_and_teacher_forwards(tmp_path):
    class Sums(TrainerCallback):
        def __init__(self):
            self.student, self.teacher = [], []

        def on_step_end(self, args, state, control, **kwargs):
            self.student.append(run.rollouts.last_sync.checksum)
            self.teacher.append(run.engine.teacher_checksum())

    sums = Sums()
    run = trainer(tmp_path, max_steps=5, radius_anneal_steps=2, callbacks=[sums])
    run.train()
    lines = metrics(tmp_path)
    assert [line["rollout/trust_region_radius"] for line in lines] == [0.3, 0.15, 0.0, 0.0, 0.0]
    assert all(line["rollout/teacher_q_forwards"] > 0 for line in lines[:2])
    assert all(line["rollout/teacher_q_forwards"] == 0 == line["rollout/correction_rate"] for line in lines[2:])
    assert lines[0]["rollout/correction_rate"] > 0
    assert len(set(sums.student)) == 5
    assert len(set(sums.teacher)) == 1
    for step, line in enumerate(lines, start=1):
        batch, facts = read_rollouts(tmp_path / "rollouts" / f"step-{step:06d}.parquet")
        assert batch.student_version == step - 1
        assert facts == {"method": "saki", "step": str(step)}
        assert line["train/logprob_gap_max"] < 1e-4


def test_resume_is_bit_equal_and_logs_each_step_once(tmp_path):
    options = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2, "num_rows": 9}  # two steps an epoch
    whole = trainer(tmp_path / "whole", **options)
    whole.train()
    part = trainer(tmp_path / "part", **(options | {"max_steps": 3}))
    part.train()
    assert sorted(p.name for p in (tmp_path / "part" / "checkpoints").iterdir()) == ["checkpoint-2", "checkpoint-3"]
    (tmp_path / "part" / "checkpoints" / "checkpoint-3" / "optimizer.pt").unlink()  # damaged: the older one is used
    resumed = trainer(tmp_path / "part", **options)
    resumed.train(resume_from_checkpoint=True)
    assert_equal_weights(weights(resumed), weights(whole))
    timeless = [
        [{k: v for k, v in line.items() if not k.startswith(("time/", "sync/"))} for line in metrics(tmp_path / name)]
        for name in ("whole", "part")
    ]
    assert timeless[0] == timeless[1]
    assert [line["step"] for line in timeless[0]] == [1, 2, 3, 4, 5]


def test_evaluation_during_training(tmp_path):
    run = trainer(
        tmp_path,
        eval_dataset=[{**row, "answer": "a"} for row in tiny_rows(5)],
        eval_grader=lambda text, answer: answer in text,
        eval_strategy="steps",
        eval_steps=1,
        eval_num_generations=2,
    )
    run.train()
    evaluations = [line for line in metrics(tmp_path) if "eval/kl_to_teacher" in line]
    assert len(evaluations) == 2
    assert all(0 <= line["eval/mean_at_2"] <= 1 and line["eval/mean_length"] > 0 for line in evaluations)
    again = run.evaluate()
    assert again["eval/kl_to_teacher"] == pytest.approx(evaluations[-1]["eval/kl_to_teacher"], abs=1e-9)


def test_gradient_checkpointing_changes_no_gradient(tmp_path):
    kept = []
    # transformers 5.24 renamed the option.
    option = next(n for n in ("activation_checkpointing", "gradient_checkpointing") if hasattr(SakiConfig, n))
    for on in (False, True):
        keep = Gradients()
        run = trainer(tmp_path / str(on), torch.float64, max_steps=1, callbacks=[keep], **{option: on})
        run.train()
        kept.append(keep.values)
    for name, value in kept[0].items():
        assert torch.allclose(value, kept[1][name], atol=1e-12), name


def test_peft_trains_the_adapter_and_the_engine_follows(tmp_path):

    lora = LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    run = trainer(tmp_path, peft_config=lora, max_steps=3, save_strategy="steps", save_steps=2)
    first = run.engine.student_checksum()
    run.train()
    assert all(line["train/logprob_gap_max"] < 1e-4 for line in metrics(tmp_path))
    assert run.engine.student_checksum() != first
    frozen = dict(tiny_pair()[0].named_parameters())
    base = run.model.get_base_model().model.layers[0].self_attn.q_proj.base_layer.weight
    assert torch.equal(base, frozen["model.layers.0.self_attn.q_proj.weight"])


def test_an_adapter_starts_from_the_seed_alone(tmp_path):
    def first_weights(folder, **changes):
        run = trainer(folder, peft_config=LoraConfig(r=2, target_modules=["q_proj"]), **changes)
        return [value.detach().clone() for name, value in run.model.named_parameters() if "lora_A" in name]

    torch.manual_seed(1)
    one = first_weights(tmp_path / "one")
    torch.manual_seed(2)
    other = first_weights(tmp_path / "other")
    assert all(map(torch.equal, one, other))
    assert not any(map(torch.equal, one, first_weights(tmp_path / "seed", seed=4)))


def test_a_method_of_ones_own(tmp_path):
    own = Method("own", "Reverse KL under bridge rollouts.", "bridge", route_to_first, (REVERSE_KL,))
    run = trainer(tmp_path, method=own)
    run.train()
    assert metrics(tmp_path)[-1]["loss/reverse_kl_share"] == 1.0


def test_pad_equal_to_eos_and_short_completions(tmp_path):
    """The end token trains, padding does not, whatever value padding has."""
    grads = []
    for pad_is_eos in (False, True):
        student, teacher = tiny_pair(torch.float64)
        keep = Gradients()
        folder = tmp_path / str(pad_is_eos)
        SakiTrainer(
            student,
            teacher,
            config(folder, max_steps=1),
            tiny_rows(12),
            processing_class=tiny_tokenizer(pad_is_eos),
            callbacks=[keep],
        ).train()
        grads.append(keep.values)
    assert len(set(batch_lengths(tmp_path / "True"))) > 1
    for name, value in grads[0].items():
        assert torch.allclose(value, grads[1][name], atol=1e-12), name


def batch_lengths(folder):
    return read_rollouts(folder / "rollouts" / "step-000001.parquet")[0].lengths.tolist()


@pytest.mark.parametrize(
    ("changes", "last"),
    [({"save_strategy": "steps", "save_steps": 1}, "checkpoints/checkpoint-1"), ({"save_rollouts_steps": 3}, "none")],
)
def test_a_diverged_loss_stops_with_the_batch_saved(tmp_path, changes, last):
    run = trainer(tmp_path, max_steps=3, **changes)
    original = run.compute_loss

    def poisoned(model, *args, **kwargs):
        if run.state.global_step == 1:
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
        return original(model, *args, **kwargs)

    run.compute_loss = poisoned
    with pytest.raises(TrainingDivergedError, match="loss of step 2 is nan") as caught:
        run.train()
    stored = tmp_path / "rollouts" / "step-000002.parquet"
    assert len(read_rollouts(stored)[0]) == 8
    assert f"its rollout is in {stored}, the last checkpoint is {last}" in str(caught.value).replace(
        str(tmp_path / "checkpoints"), "checkpoints"
    )


def test_a_nan_row_is_named_and_the_step_goes_on(tmp_path, caplog):
    clean = trainer(tmp_path / "clean", max_steps=1)
    clean.train()
    reference, _ = read_rollouts(tmp_path / "clean" / "rollouts" / "step-000001.parquet")
    # A token after which some rows, and not all, go on.
    inner = [set(reference.completion_token_ids(row)[:-1]) for row in range(len(reference))]
    token = next(t for t in range(2, VOCAB) if 0 < sum(t in tokens for tokens in inner) < len(inner))
    run = trainer(tmp_path / "nan", max_steps=1)

    def nan_after_token(module, args, kwargs, output):
        shown = kwargs["input_ids"][:, -output.logits.shape[1] :]
        output.logits = output.logits.masked_fill((shown == token).unsqueeze(-1), torch.nan)
        return output

    run.engine._student.model.register_forward_hook(nan_after_token, with_kwargs=True)
    caplog.clear()
    run.train()
    batch, _ = read_rollouts(tmp_path / "nan" / "rollouts" / "step-000001.parquet")
    broken = [row for row, reason in enumerate(batch.finish_reasons) if reason == "nan"]
    assert 0 < len(broken) < len(batch)
    for row in range(len(batch)):
        ids, full = batch.completion_token_ids(row), reference.completion_token_ids(row)
        assert ids == (full[: len(ids)] if row in broken else full)
        name = f"step 1: prompt {int(batch.prompt_keys[row])}, sample {int(batch.sample_indices[row])} "
        assert (row in broken) == any(name in record.getMessage() for record in caplog.records)
    (line,) = metrics(tmp_path / "nan")
    assert line["rollout/nan_share"] == len(broken) / len(batch)
    assert math.isfinite(line["loss"])
    assert all(bool(torch.isfinite(value).all()) for value in weights(run).values())


def test_nan_in_every_row_stops_the_run(tmp_path):
    run = trainer(tmp_path, save_rollouts_steps=0)
    with torch.no_grad():
        next(run.model.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingDivergedError, match="every completion of step 1 ended early") as caught:
        run.train()
    assert "none was saved yet" in str(caught.value)
    assert (tmp_path / "rollouts" / "step-000001.parquet").is_file()  # though no rollouts were asked for


def test_too_few_prompts(tmp_path):
    with pytest.raises(ValueError, match="a step needs 4 prompts"):
        trainer(tmp_path, num_rows=3).train()


@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=2, target_modules=["q_proj"])])
def test_a_saved_student_ends_where_it_has_learnt_to_end(peft_config, tmp_path):
    """The teacher ends at an id more; both ends are the student's afterwards, for saki and for ``generate``."""
    student, teacher = tiny_pair()
    student.save_pretrained(tmp_path / "base")
    teacher.generation_config.eos_token_id = [1, 5]
    pair = (load_causal_lm(tmp_path / "base"), teacher)
    run = trainer(tmp_path / "run", pair=pair, max_steps=1, peft_config=peft_config)
    assert run.pair.stop_token_ids == (1, 5)
    run.train()
    run.save_model()
    saved = load_causal_lm(tmp_path / "run" / "model")
    assert saved.generation_config.eos_token_id == [1, 5]
    assert resolve_pair(saved, None, tiny_tokenizer(), None).stop_token_ids == (1, 5)


def test_the_best_student_is_the_one_that_is_evaluated_afterwards(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": False}
    run = trainer(tmp_path, eval_dataset=tiny_rows(4), learning_rate=1e-3, **options, **best)
    run.train()
    logged = {line["step"]: line["eval_loss"] for line in run.state.log_history if "eval_loss" in line}
    assert run.state.best_global_step == min(logged, key=logged.get)
    assert run.state.best_global_step < 3
    assert run.evaluate()["eval_loss"] == logged[run.state.best_global_step]


@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=2, target_modules=["q_proj"])])
def test_weights_that_swallow_updates_are_warned_about(peft_config, tmp_path, caplog):
    trainer(tmp_path, torch.bfloat16, peft_config=peft_config)
    assert ("the student's weights are bfloat16" in caplog.text) == (peft_config is None)


@pytest.mark.parametrize("invalid", [True, False])
def test_an_adapter_is_saved_whatever_the_generation_config_of_its_base(invalid, tmp_path):
    student, teacher = tiny_pair()
    if invalid:
        student.generation_config.temperature, student.generation_config.do_sample = 0.6, False
    else:
        student.generation_config = None
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    run = trainer(tmp_path, pair=(student, teacher), max_steps=1, peft_config=lora)
    run.train()
    run.save_model()
    assert (tmp_path / "model" / "adapter_model.safetensors").is_file()
