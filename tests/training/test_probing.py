"""A probe measured while a run trains: what a checkpoint of that step shows, and the run is as it was."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from saki.models import plain_state
from saki.probe import MEASURES, measure_probe, read_measurement, read_probe, write_probe
from saki.rollout import HFDecoder
from saki.training import TrainingDivergedError
from saki.training.probing import drop_measurements
from tests.probing import tiny_probe
from tests.tiny import VOCAB, tiny_pair
from tests.training.test_trainer import trainer


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probes") / "probe"
    write_probe(folder, tiny_probe())
    return folder


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_what_is_written_is_what_a_checkpoint_shows(probe, tmp_path):
    settings = {"max_steps": 5, "save_strategy": "steps", "save_steps": 2}
    run = trainer(tmp_path / "a", probe=str(probe), probe_steps=2, **settings)
    run.train()
    files = sorted(path.name for path in (tmp_path / "a" / "probe").iterdir())
    assert files == [f"step-{step:06d}.parquet" for step in (0, 2, 4, 5)]
    frozen = read_probe(probe)
    first = read_measurement(tmp_path / "a" / "probe" / files[0])
    assert (first.step, first.label, first.probe, first.top_k) == (0, "saki", frozen.digest, 3)
    for name in MEASURES:
        assert torch.equal(getattr(first.measures, name), getattr(frozen.initial, name)), name
    student, _ = tiny_pair()
    weights = load_file(tmp_path / "a" / "checkpoints" / "checkpoint-4" / "model.safetensors")
    student.load_state_dict(weights, strict=False)
    measured = measure_probe(HFDecoder(student, VOCAB), frozen)
    written = read_measurement(tmp_path / "a" / "probe" / files[2])
    for name in MEASURES:
        assert torch.equal(getattr(measured, name), getattr(written.measures, name)), name
        assert not torch.equal(getattr(measured, name), getattr(first.measures, name)), name
    logged = {line["step"]: line for line in lines(tmp_path / "a") if "probe/c1" in line}
    assert sorted(logged) == [0, 2, 4, 5]
    assert logged[4]["probe/kl_teacher_student"] == written.means()["kl_teacher_student"]
    assert [line["step"] for line in lines(tmp_path / "a") if "loss" in line] == [1, 2, 3, 4, 5]

    plain = trainer(tmp_path / "b", **settings)
    plain.train()
    for (name, a), (_, b) in zip(plain_state(run.model), plain_state(plain.model), strict=True):
        assert torch.equal(a, b), name


def test_a_resumed_run_measures_the_same(probe, tmp_path):
    settings = {"probe": str(probe), "probe_steps": 1, "save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path / "whole", max_steps=4, **settings).train()
    # A run that stops after step 3 has a checkpoint of step 2: step 3 comes again.
    trainer(tmp_path / "parts", max_steps=3, **settings | {"save_total_limit": 9}).train()
    for path in (tmp_path / "parts" / "checkpoints").glob("checkpoint-3*"):
        path.rename(path.with_name("gone"))
    trainer(tmp_path / "parts", max_steps=4, **settings).train(resume_from_checkpoint=True)
    for step in range(5):
        a, b = (read_measurement(tmp_path / name / "probe" / f"step-{step:06d}.parquet") for name in ("whole", "parts"))
        for name in MEASURES:
            assert torch.equal(getattr(a.measures, name), getattr(b.measures, name)), (step, name)
    steps = [line["step"] for line in lines(tmp_path / "parts") if "probe/c1" in line]
    assert steps == [0, 1, 2, 3, 4]


def test_measurements_of_later_steps_go(tmp_path):
    for name in ("step-000002.parquet", "step-000004.parquet", "notes.txt"):
        (tmp_path / name).write_text("x")
    drop_measurements(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step-000002.parquet"]
    drop_measurements(tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    drop_measurements(tmp_path / "nothing", 0)


def test_a_probe_that_does_not_fit_is_refused_before_anything_is_written(probe, tmp_path):
    with pytest.raises(ValueError, match="there is no probe in"):
        trainer(tmp_path / "run", probe=str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="probe_steps must be at least 1"):
        trainer(tmp_path / "run", probe=str(probe), probe_steps=0)
    other = tmp_path / "other"
    write_probe(other, tiny_probe())
    manifest = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"vocabulary": "other"}))
    with pytest.raises(ValueError, match="was built with another vocabulary"):
        trainer(tmp_path / "run", probe=str(other))
    assert not (tmp_path / "run").exists()


class Poison(TrainerCallback):
    """Spoils the weights after the first step."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)


def test_weights_that_became_nan_end_the_run_as_diverged(probe, tmp_path):
    run = trainer(tmp_path / "run", probe=str(probe), probe_steps=1, callbacks=[Poison()])
    with pytest.raises(TrainingDivergedError, match="the probe cannot be measured after step 1: the figures of 24"):
        run.train()
