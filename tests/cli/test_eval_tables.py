"""``saki eval tables``: evaluations of two runs, their teacher and their student, as the tables of a study."""

from __future__ import annotations

import json

import pytest
import yaml

from saki.analysis.study_results import read_results
from saki.cli.main import main
from saki.evaluation import SampleSet, write_samples
from saki.evaluation.samples import samples_file


def evaluation(folder, model, right, **inputs):
    """A finished evaluation of two problems with two samples each; ``right`` has a verdict a sample."""
    samples = SampleSet(
        benchmark="sums",
        prompts=("1+1", "2+2"),
        answers=("2", "4"),
        num_samples=2,
        completions=("a", "b", "c", "d"),
        num_tokens=(1, 1, 1, 1),
        finish_reasons=("stop",) * 4,
        verdicts=tuple(right),
        seconds=1.0,
    )
    (folder / "samples").mkdir(parents=True)
    write_samples(samples_file(folder / "samples", "sums"), samples)
    result = {model: {"benchmarks": {"sums": {}}}}
    (folder / "evaluation.json").write_text(json.dumps(result))
    fixed = {"num_samples": 2, "max_new_tokens": 64, "temperature": 1.0, "benchmarks": {"sums": "1f"}}
    (folder / "inputs.json").write_text(json.dumps({**fixed, **inputs}))


def trained(folder, method, seed, right, **inputs):
    """A run folder with the evaluation of its student inside."""
    folder.mkdir(parents=True)
    settings = {"method": method, "seed": seed, "model": "org/student", "teacher_model": "org/teacher"}
    (folder / "config.resolved.yaml").write_text(yaml.safe_dump(settings))
    (folder / "metrics.jsonl").write_text('{"step": 199, "loss": 1.0}\n{"step": 200, "loss": 0.5}\n')
    evaluation(folder / "evaluation", str(folder / "model"), right, **inputs)


R, W = "correct", "incorrect"


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        trained(tmp_path / f"trb-{seed}", "trb", seed, [R, W, W, W])
        trained(tmp_path / f"saki-{seed}", "saki", seed, [R, R, R, W])
    evaluation(tmp_path / "teacher", "org/teacher", [R, R, R, R])
    evaluation(tmp_path / "student", "org/student", [W, W, W, W])
    return tmp_path


def folders(runs, *names):
    return [str(runs / name) for name in names]


def test_tables_results_and_figure_3(runs, capsys):
    names = folders(runs, "trb-0", "trb-1", "saki-0", "saki-1", "teacher", "student")
    out = runs / "tables"
    assert main(["eval", "tables", *names, "--out", str(out), "--json"]) == 0
    said = capsys.readouterr().out
    assert json.loads(said.splitlines()[-1])["evaluations"] == 6
    scores = {(each.label, each.seed): each for each in read_results(out / "results.parquet")}
    assert scores["saki", 1].num_right == (2, 1)
    assert (scores["saki", 1].student, scores["saki", 1].step, scores["saki", 1].method) == ("student", 200, "saki")
    assert scores["teacher", 0].num_right == (2, 2)
    assert scores["student", 0].num_right == (0, 0)
    tables = (out / "tables.md").read_text()
    assert "| Teacher (student) | 100.0 |" in tables or "| Teacher | 100.0 |" in tables
    assert "| SAKI - TRB | +50.00 |" in tables
    assert main(["figures", str(out), "--out", str(runs / "figures")]) == 0
    assert (runs / "figures" / "figure3.svg").is_file()


@pytest.mark.parametrize(
    ("prepare", "words", "sentence"),
    [
        (None, ["teacher"], "neither the teacher nor the untrained student of a run here"),
        (None, ["trb-0", "absent"], "absent holds no evaluation with samples"),
        (
            lambda runs: trained(runs / "again", "trb", 0, [R, W, W, W]),
            ["trb-0", "again"],
            "tell them apart by a label",
        ),
        (
            lambda runs: trained(runs / "long", "trb", 3, [R, W, W, W], max_new_tokens=128),
            ["trb-0", "long"],
            "was evaluated with max_new_tokens 128, not 64, unlike",
        ),
        (
            lambda runs: trained(runs / "other", "trb", 3, [R, W, W, W], benchmarks={"sums": "2f"}),
            ["trb-0", "other"],
            "was evaluated with other problems, unlike",
        ),
        (
            lambda runs: evaluation(runs / "alone", "org/else", [R, W, W, W]),
            ["trb-0", "alone"],
            "neither the teacher nor the untrained student of a run here",
        ),
        (None, ["trb-0", "--reference", "opd"], "reference 'opd' is none of trb"),
    ],
)
def test_mistakes_leave_nothing_behind(runs, capsys, prepare, words, sentence):
    if prepare is not None:
        prepare(runs)
    words = [word if word.startswith("--") or word == "opd" else str(runs / word) for word in words]
    assert main(["eval", "tables", *words, "--out", str(runs / "tables")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (runs / "tables").exists()


def test_the_teacher_alone_makes_no_table(runs, capsys):
    assert main(["eval", "tables", f"teacher={runs / 'teacher'}", "--out", str(runs / "tables")]) == 2
    assert "there is no evaluation of a trained student" in capsys.readouterr().err


def test_labels_tell_runs_of_one_method_apart(runs, capsys):
    trained(runs / "wide", "saki", 0, [R, R, R, R])
    words = [*folders(runs, "trb-0", "saki-0"), f"saki-0.1={runs / 'wide'}"]
    assert main(["eval", "tables", *words, "--out", str(runs / "tables")]) == 0
    assert {each.label for each in read_results(runs / "tables" / "results.parquet")} == {"trb", "saki", "saki-0.1"}


def test_a_report_of_several_runs_shows_their_evaluations(runs):
    """saki eval names its only result after the model."""
    from saki.analysis.comparison_report import _of_trained

    found = _of_trained(runs / "trb-0")
    assert found == {"benchmarks": {"sums": {}}}
    assert _of_trained(runs) is None
