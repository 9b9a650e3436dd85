"""``saki figures``: what it draws of which source, and one sentence for each mistake."""

from __future__ import annotations

import csv
import json
import shutil

import pytest

from saki.analysis import publication
from tests.analysis import made_study as made
from tests.cli import spoken

SPREAD = {"min": 90.0, "max": 120.0}
ROLLOUT = {
    "arms": {
        "student_only": {
            "tokens_per_s": 100.0,
            "spread": {"tokens_per_s": SPREAD},
            "split": {"draft": 3.0, "verify": 0.0, "rest": 1.0},
            "ratio_to_student_only": 1.0,
        }
    }
}
TRAIN = {"arms": {"opd": {"step_s": 1.0, "generation_s": 0.5, "scoring_s": 0.1, "update_s": 0.2, "sync_s": 0.0}}}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return made.make_study(tmp_path_factory.mktemp("figures") / "study")


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Small pictures in two forms, so that the tests are quick; tests of the module write them all."""
    monkeypatch.setattr(publication, "DPI", 40)
    monkeypatch.setattr(publication, "FORMATS", ("svg", "png"))


def read_csv(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def said(capsys, argv):
    return spoken.said(capsys, ["figures", *argv])


def refused(capsys, argv):
    return spoken.refused(capsys, ["figures", *argv])


def test_everything_that_sources_hold_is_drawn(study, tmp_path, capsys):
    for name, result in (("a", ROLLOUT), ("b", TRAIN)):
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    run = study / "runs" / "lab-a" / "saki" / "seed-1"
    sources = [str(study), str(run), str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    out = tmp_path / "out"
    found = said(capsys, [*sources, "-o", str(out)])
    names = ["figure3", "figure4", "learning_curves", "figure4_seed-1", "step_time", "throughput_a", "step_time_b"]
    assert found["figures"] == names
    assert sorted(path.name for path in out.iterdir()) == sorted(
        f"{name}.{ending}" for name in names for ending in ("svg", "png", "csv")
    )
    assert found["left_out"] == {}
    rows = read_csv(out / "figure4.csv")
    assert {row["arm"] for row in rows} == {"saki, lab-a", "saki, lab-b"}
    (bar,) = [row for row in read_csv(out / "throughput_a.csv") if row["phase"] == "draft"]
    assert (float(bar["tokens_per_s"]), float(bar["share_of_time"])) == (100.0, 0.75)


def test_arms_are_chosen_and_what_is_not_drawn_is_said(study, tmp_path, capsys):
    folder = tmp_path / "study"
    shutil.copytree(study, folder)
    found = said(capsys, [str(folder), "--only", "saki,trb", "--method", "trb", "--reference", "saki"])
    assert found["files"][0] == str(folder / "figures" / "figure3.svg")
    arms = {row["arm"] for row in read_csv(folder / "figures" / "learning_curves.csv")}
    assert arms == {"saki", "trb", "teacher", "student"}
    for path in folder.rglob("result*"):
        path.unlink()
    found = said(capsys, [str(folder)])  # nothing is finished: only the metrics are there
    assert found["figures"] == ["figure4"]
    assert list(found["left_out"]) == [f"figure3 of {folder}", f"learning_curves of {folder}"]


def test_mistakes_are_one_sentence(study, tmp_path, capsys):
    path = tmp_path / "a.json"
    assert "saki figures needs a study, a run or a benchmark's JSON first" in refused(capsys, [])
    assert "there is no" in refused(capsys, [str(path)])
    for text, message in (
        ("", "is empty; expected the last line of saki bench"),
        ('{"arms": ', "is not what saki bench rollout or train prints under --json"),
        ('{"arms": {"a": {"tokens_per_s": 1}}}', "is not what saki bench rollout or train prints under --json"),
        ("[]", "is not what saki bench rollout or train prints under --json"),
        ('{"arms": {}}', "is not what saki bench rollout or train prints under --json"),
    ):
        path.write_text(text)
        assert message in refused(capsys, [str(path)])
    for out in (str(path), "/proc/x"):
        assert "cannot write to" in refused(capsys, [str(study), "--out", out])
    assert "is neither a study nor a run" in refused(capsys, [str(tmp_path)])
    assert "method names 'sakki', which is no arm" in refused(capsys, [str(study), "--method", "sakki"])
    assert "only names 'skd', which is no arm" in refused(capsys, [str(study), "--only", "skd"])
    folder = tmp_path / "study"
    shutil.copytree(study, folder)
    for content, message in ((b"", "is empty"), (b"PAR1 and so on", "not a readable parquet file")):
        (folder / "results.parquet").write_bytes(content)
        assert message in refused(capsys, [str(folder)])
    (folder / "results.parquet").write_bytes((study / "results.parquet").read_bytes())
    (folder / "runs/lab-a/saki/seed-0/metrics.jsonl").write_text("oops\n{}\n")
    assert "metrics.jsonl line 1 is not a JSON object" in refused(capsys, [str(folder)])
    assert not (folder / "figures").exists()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    assert "none of time/rollout_s" in refused(capsys, [str(tmp_path)])
