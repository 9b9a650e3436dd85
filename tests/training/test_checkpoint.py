"""Checkpoints: damage of every kind is named, and the last good one is found."""

import json

import pytest
import torch
from peft import LoraConfig

from saki.training.checkpoint import (
    MANIFEST,
    CheckpointError,
    check_checkpoint,
    last_good_checkpoint,
    list_checkpoints,
    publish,
    rotate,
    set_aside,
    write_manifest,
)
from tests.tiny import tiny_pair
from tests.training.test_trainer import assert_equal_weights, metrics, trainer, weights

FACTS = {"method": "saki", "seed": 1}


def checkpoint(root, step):
    staged = root / ".staging" / f"checkpoint-{step}"
    staged.mkdir(parents=True)
    (staged / "model.safetensors").write_bytes(b"weights" * step)
    (staged / "optimizer.pt").write_bytes(b"state")
    write_manifest(staged, FACTS)
    publish(staged, root / f"checkpoint-{step}")
    return root / f"checkpoint-{step}"


def make_folder(path):
    path.unlink()
    path.mkdir()


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_order_and_the_last_good_one(tmp_path):
    for step in (9, 10, 100):
        checkpoint(tmp_path, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-100", "checkpoint-10", "checkpoint-9"]
    (tmp_path / "checkpoint-100" / "optimizer.pt").write_bytes(b"stat")
    path, refused = last_good_checkpoint(tmp_path, FACTS)
    assert path.name == "checkpoint-10"
    assert len(refused) == 1
    assert "4 bytes" in refused[0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / MANIFEST).unlink(), "not a finished checkpoint"),
        (lambda path: (path / MANIFEST).write_text("{"), "not readable JSON"),
        (lambda path: (path / "optimizer.pt").unlink(), "lacks optimizer.pt"),
        (lambda path: (path / "optimizer.pt").write_bytes(b"stat"), "holds 4 bytes"),
        (lambda path: (path / "optimizer.pt").write_bytes(b"statf"), "damaged"),
        (
            lambda path: (path / MANIFEST).write_text(json.dumps({"schema_version": 9, "facts": {}, "files": {}})),
            "schema version 9",
        ),
        (lambda path: (path / MANIFEST).write_text("[]"), "schema version None"),
        (lambda path: (path / MANIFEST).write_text('{"schema_version": 1}'), "lists no files and facts"),
        (lambda path: make_folder(path / "optimizer.pt"), "lacks optimizer.pt"),
        (lambda path: make_folder(path / MANIFEST), "cannot be read"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    path = checkpoint(tmp_path, 1)
    check_checkpoint(path, FACTS)
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        check_checkpoint(path, FACTS)
    assert last_good_checkpoint(tmp_path, FACTS)[0] is None


def test_foreign_runs_are_refused(tmp_path):
    path = checkpoint(tmp_path, 1)
    with pytest.raises(CheckpointError, match="method = 'saki', this run has 'opd'"):
        check_checkpoint(path, {"method": "opd"})


def test_an_older_checkpoint_of_the_same_step_is_replaced(tmp_path):
    checkpoint(tmp_path, 1)
    (tmp_path / "checkpoint-1" / "stray").write_text("x")
    checkpoint(tmp_path, 1)
    assert not (tmp_path / "checkpoint-1" / "stray").exists()


def test_a_flipped_bit_in_the_manifest_is_refused_or_harmless(tmp_path):
    path = checkpoint(tmp_path, 1)
    manifest = path / MANIFEST
    whole, refused = manifest.read_bytes(), 0
    for place in range(len(whole)):
        flip(manifest, place, bit=place % 8)
        try:
            check_checkpoint(path, FACTS)
        except CheckpointError:
            refused += 1
        manifest.write_bytes(whole)
    assert refused > len(whole) / 4  # the rest is white space and such


def test_rotation_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 3, 10, 11):
        checkpoint(tmp_path, step)
    rotate(tmp_path, None, {"checkpoint-11"})
    assert len(list_checkpoints(tmp_path)) == 5
    rotate(tmp_path, 3, {"checkpoint-11", "checkpoint-2"})
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-11", "checkpoint-10", "checkpoint-2"]
    rotate(tmp_path, 1, {"checkpoint-11", "checkpoint-2"})
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-11", "checkpoint-2"]


def test_checkpoints_beyond_a_step_are_set_aside(tmp_path):
    for _ in range(2):
        checkpoint(tmp_path, 1)
        checkpoint(tmp_path, 2)
        set_aside(tmp_path, 1)
    names = sorted(path.name for path in tmp_path.iterdir() if path.name.endswith("2"))
    assert names == ["superseded-2-checkpoint-2", "superseded-checkpoint-2"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-1"]


def test_the_trainer_names_every_damage_and_goes_on_from_the_last_good_one(tmp_path, caplog):
    options = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1}
    run = trainer(tmp_path, **options)
    run.train()
    before, lines = weights(run), metrics(tmp_path)
    five, four, three, two, one = list_checkpoints(tmp_path / "checkpoints")
    with (five / "optimizer.pt").open("r+b") as stream:
        stream.truncate(100)
    flip(four / "model.safetensors", 1000)
    (three / "scheduler.pt").unlink()
    facts = json.loads((two / MANIFEST).read_text())
    facts["facts"]["trust_region_radius"] = 0.1
    (two / MANIFEST).write_text(json.dumps(facts))
    leftover = tmp_path / "checkpoints" / ".staging" / "checkpoint-3" / "model.safetensors"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    caplog.clear()
    resumed = trainer(tmp_path, **options)
    resumed.train(resume_from_checkpoint=True)
    said = [record.getMessage() for record in caplog.records if "skipping" in record.getMessage()]
    assert len(said) == 4
    assert f"{five / 'optimizer.pt'} holds 100 bytes" in said[0]
    assert f"{four / 'model.safetensors'} is damaged" in said[1]
    assert f"{three} lacks scheduler.pt" in said[2]
    assert f"{two} was written with trust_region_radius = 0.1, this run has 0.3" in said[3]
    assert_equal_weights(weights(resumed), before)
    assert [line["step"] for line in metrics(tmp_path)] == [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    for path in (five, four, three, two, one):
        check_checkpoint(path, {})
    assert not leftover.parent.parent.exists()


def test_when_no_checkpoint_is_good_nothing_is_touched(tmp_path):
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, **options).train()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* 2 were tried .* with seed = 3, this run has 4"):
        trainer(tmp_path, seed=4, **options).train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match="num_prompts = 12, this run has 11"):
        trainer(tmp_path, num_rows=11, **options).train(resume_from_checkpoint=True)
    for path in list_checkpoints(tmp_path / "checkpoints"):
        (path / "rng_state.pth").unlink()
    damaged = contents(tmp_path)
    assert len(damaged) == len(before) - 2
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* 2 were tried .* lacks rng_state.pth"):
        trainer(tmp_path, **options).train(resume_from_checkpoint=True)
    assert contents(tmp_path) == damaged
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        trainer(tmp_path / "empty", **options).train(resume_from_checkpoint=True)


def test_a_checkpoint_without_an_optimizer_is_refused(tmp_path):
    trainer(tmp_path, save_strategy="steps", save_steps=1, save_only_model=True).train()
    with pytest.raises(CheckpointError, match="save_only_model = True, this run has False"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


def test_going_on_from_an_earlier_one_sets_later_ones_aside(tmp_path):
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    run = trainer(tmp_path, **options)
    run.train()
    again = trainer(tmp_path, **(options | {"max_steps": 2}))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoints" / "checkpoint-1"))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["checkpoint-1", "checkpoint-2", "superseded-checkpoint-2", "superseded-checkpoint-3"]
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2]
    assert sorted(p.name for p in (tmp_path / "rollouts").iterdir()) == ["step-000001.parquet", "step-000002.parquet"]


def test_a_finished_run_trains_nothing_more(tmp_path):
    """Also where the last step lies within an epoch, and where evaluation or saving come at the end of one."""
    options = {"max_steps": 2, "num_rows": 12, "save_strategy": "epoch", "eval_strategy": "epoch"}
    options |= {"eval_on_start": True, "eval_dataset": [{"prompt": "a b"}]}
    run = trainer(tmp_path, **options)
    run.train()
    before, log = weights(run), (tmp_path / "metrics.jsonl").read_bytes()
    assert [line["step"] for line in metrics(tmp_path)] == [0, 1, 2, 2]
    (tmp_path / "checkpoints" / ".staging" / "checkpoint-2").mkdir(parents=True)  # what a killed save left
    resumed = trainer(tmp_path, **options)
    outcome = resumed.train(resume_from_checkpoint=True)
    assert outcome.global_step == 2
    assert_equal_weights(weights(resumed), before)
    assert (tmp_path / "metrics.jsonl").read_bytes() == log
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-2"]


def test_another_teacher_or_base_model_is_refused(tmp_path):
    """Every weight of the new one has the shape of the old one, so nothing else would notice."""
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path / "whole", **options).train()
    student, teacher = tiny_pair()
    other_student, other_teacher = tiny_pair()
    with torch.no_grad():
        other_teacher.model.norm.weight[0] += 0.5
        other_student.model.norm.weight[0] += 0.5
    with pytest.raises(CheckpointError, match="was written with another teacher, or the same in another dtype; give"):
        trainer(tmp_path / "whole", pair=(student, other_teacher), **options).train(resume_from_checkpoint=True)
    trainer(tmp_path / "whole", pair=(other_student, teacher), **options).train(resume_from_checkpoint=True)

    lora = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"]), **options}
    trainer(tmp_path / "adapter", **lora).train()
    pair = (other_student, tiny_pair()[1])
    with pytest.raises(CheckpointError, match="was written with another base model under the adapter"):
        trainer(tmp_path / "adapter", pair=pair, **lora).train(resume_from_checkpoint=True)
    trainer(tmp_path / "adapter", **lora).train(resume_from_checkpoint=True)


def test_what_the_checkpoint_would_overrule_is_refused(tmp_path):
    """An optimizer takes its settings from the checkpoint, an adapter its scale from the configuration, both unseen."""
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"])
    options = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-3}
    trainer(tmp_path, peft_config=lora, **options).train()
    for changes, message in (
        ({"learning_rate": 1e-4}, "learning_rate = 0.001, this run has 0.0001; give the same learning_rate"),
        ({"weight_decay": 0.5}, "weight_decay = 0.01, this run has 0.5"),
        (
            {"peft_config": LoraConfig(r=2, lora_alpha=64, target_modules=["q_proj"])},
            "adapter = 'peft_type LORA, r 2, lora_alpha 4, .*', this run has 'peft_type LORA, r 2, lora_alpha 64, ",
        ),
        ({"peft_config": LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj"])}, "adapter = .* r 4, "),
        ({"peft_config": None}, "adapter = .*, this run has 'none'"),
    ):
        with pytest.raises(CheckpointError, match=message):
            trainer(tmp_path, **{"peft_config": lora, **options, **changes}).train(resume_from_checkpoint=True)
    trainer(tmp_path, peft_config=lora, **options).train(resume_from_checkpoint=True)


def test_other_prompts_are_told_in_words(tmp_path):
    options = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, **options).train()
    with pytest.raises(CheckpointError, match="was written with other prompts: the data set, the tokenizer or"):
        trainer(tmp_path, prompt_suffix=" a", **options).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_a_version_without_a_fact_is_taken(tmp_path):
    folder = checkpoint(tmp_path, 3)
    check_checkpoint(folder, {**FACTS, "teacher_weights": "1f"})
    with pytest.raises(CheckpointError, match="data_seed = None, this run has 4"):
        check_checkpoint(folder, {**FACTS, "data_seed": 4})
