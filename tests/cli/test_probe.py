"""``saki probe`` on the embedded pair, and one sentence with exit code 2 for what is wrong."""

from __future__ import annotations

import json

import pytest

from saki.cli.main import main
from saki.cli.probe import active_steps, checkpoint_step, file_names, parser
from saki.probe import MEASURES, read_measurement, read_probe
from tests.cli.spoken import refused

BUILD = [
    "probe",
    "build",
    *("--limit", "12", "--num_generations", "4", "--max_completion_length", "24"),
    *("--num_pairs", "8", "--top_k", "4", "--trust_region_radius", "0.1"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe") / "probe"
    assert main([*BUILD, "--out", str(folder)]) == 0
    return folder


def last_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_build_measure_and_compare(built, capsys, tmp_path):
    probe = read_probe(built)
    assert len(probe) == 16
    assert probe.facts["student"] == "lab/student"
    measure = ["probe", "measure", "--probe", str(built), "--json"]
    models = ["--model", "lab/student", "lab/teacher", "--steps", "0", "100"]
    assert main([*measure, *models, "--out", str(tmp_path / "m")]) == 0
    found = last_json(capsys)
    assert found["models"]["lab/teacher"]["kl_teacher_student"] < 1e-3 < found["models"]["lab/student"]["entropy"]
    first = read_measurement(tmp_path / "m" / "student.parquet")
    for name in MEASURES:
        assert getattr(first.measures, name).tolist() == getattr(probe.initial, name).tolist()
    assert read_measurement(tmp_path / "m" / "teacher.parquet").step == 100

    labelled = ["--model", "lab/student", "--steps", "100", "--label", "trb", "--out", str(tmp_path / "t")]
    assert main([*measure, *labelled]) == 0
    capsys.readouterr()
    compare = ["probe", "compare", "--probe", str(built), "--measured", str(tmp_path / "m" / "teacher.parquet")]
    compare += ["--reference", str(tmp_path / "t"), "--measured_name", "mine", "--out", str(tmp_path / "c"), "--json"]
    assert main(compare) == 0
    summary = last_json(capsys)
    assert (summary["measured"], summary["reference"], summary["top_k"]) == ("mine", "trb", 4)
    kl = next(e for e in summary["effects"] if e["metric"] == "kl_teacher_student" and e["group"] == "all")
    assert kl["high"] < 0
    assert kl["seed_sd"] is None
    assert "mine - TRB" in (tmp_path / "c" / "table7_probe.md").read_text()
    assert all((tmp_path / "c" / f"figure2.{ending}").is_file() for ending in ("svg", "pdf", "png", "csv"))

    control = [*compare[:-3], "--out", str(tmp_path / "d"), "--json", "--control", str(tmp_path / "m/student.parquet")]
    assert "no step is common" in refused(capsys, control)  # the student was measured at step 0 only
    control[-1] = str(tmp_path / "t")
    assert main([*control, "--control_name", "random_tm", "--active_steps", "50"]) == 0
    summary = last_json(capsys)
    assert (summary["reference"], summary["control"]) == ("trb", "random_tm")
    rows = (tmp_path / "d" / "figure2.csv").read_text().splitlines()
    assert rows[1].startswith("a,mine,trb,100,C1,all,")
    assert rows[3].startswith("b,mine,random_tm,100,C4,Q1,")
    assert (tmp_path / "d" / "control" / "effects.csv").is_file()


def test_the_active_phase_is_that_of_the_measured_run(tmp_path):
    (tmp_path / "run" / "probe").mkdir(parents=True)
    assert active_steps([str(tmp_path / "run" / "probe")]) is None
    radii = [0.02, 0.01, 0.0, 0.0]
    lines = [f'{{"step": {n}, "rollout/trust_region_radius": {radius}}}\n' for n, radius in enumerate(radii, 1)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines))
    for name in ("probe", "probe/step-000002.parquet"):
        (tmp_path / "run" / "probe" / "step-000002.parquet").write_bytes(b"")
        assert active_steps([str(tmp_path / "run" / name)]) == 2


def test_mistakes(built, capsys, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    measure = ["probe", "measure", "--probe", str(built), "--model", "lab/student", *out]
    assert "saki probe takes build, measure or compare, got 'biuld'" in refused(capsys, ["probe", "biuld"])
    assert "got nothing" in refused(capsys, ["probe"])
    assert "saki probe build needs --out" in refused(capsys, BUILD)
    assert "is not empty; give saki probe build another --out" in refused(capsys, [*BUILD, "--out", str(built)])
    assert "saki probe measure needs --probe" in refused(capsys, ["probe", "measure", *out])
    assert "saki probe compare needs --probe" in refused(capsys, ["probe", "compare"])
    assert "steps must name a step for each of 1 models, got 2" in refused(capsys, [*measure, "--steps", "1", "2"])
    assert "top_k must be at most 36" in refused(capsys, [*measure, "--top_k", "37"])
    assert "num_pairs must be at least 1" in refused(capsys, ["probe", "build", "--num_pairs", "0", *out])
    assert "resamples must be at least 100" in refused(capsys, ["probe", "compare", "--resamples", "1"])
    few = ["probe", "build", "--limit", "1", "--num_generations", "1", "--max_completion_length", "4", *out]
    assert "roll out more (limit, num_generations)" in refused(capsys, few)
    assert not (tmp_path / "out").exists()


def test_a_model_of_another_vocabulary_is_refused(built, capsys, tmp_path):
    from saki.models import tiny_qwen3
    from tests.tiny import VOCAB, tiny_tokenizer

    model = tiny_qwen3(VOCAB, hidden=16, layers=1, heads=2, kv_heads=1)
    model.config.eos_token_id = model.generation_config.eos_token_id = 1
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    argv = ["probe", "measure", "--probe", str(built), "--model", str(tmp_path / "model"), "--out", str(tmp_path / "o")]
    assert "is not that of the probe, which has 36 ids" in refused(capsys, argv)
    assert not (tmp_path / "o").exists()


def test_damaged_files_are_one_sentence(built, capsys, tmp_path):
    path = tmp_path / "m.parquet"
    compare = ["probe", "compare", "--probe", str(built), "--measured", str(path), "--reference", str(path)]
    path.write_bytes(b"")
    assert "m.parquet is empty" in refused(capsys, compare)
    path.write_bytes(b"PAR1 and so on")
    assert "m.parquet is damaged or cut short" in refused(capsys, compare)
    assert "there is no probe in" in refused(capsys, ["probe", "compare", "--probe", str(tmp_path), *compare[4:]])
    path.unlink()
    path.mkdir()
    assert "holds no measurement" in refused(capsys, compare)


def test_names_of_files():
    assert file_names(["lab/student"]) == ["student"]
    models = [f"runs/{run}/checkpoints/checkpoint-{step}" for run in ("trb", "saki") for step in (50, 100)]
    assert file_names(models) == [
        f"{run}-checkpoints-checkpoint-{step}" for run in ("trb", "saki") for step in (50, 100)
    ]
    with pytest.raises(ValueError, match="a/b is named twice"):
        file_names(["a/b", "c", "a/b"])
    assert checkpoint_step("runs/trb/checkpoints/checkpoint-50") == 50
    assert checkpoint_step("runs/trb/model") is None


@pytest.mark.parametrize(("words", "tokens"), [([], 64), (["--dataset", "a.parquet"], 7168)])
def test_completions_are_the_papers_unless_the_prompts_are_the_labs(words, tokens):
    _, args = parser("build").parse(words)
    assert args.max_completion_length == tokens
