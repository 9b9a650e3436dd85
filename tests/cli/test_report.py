"""``saki report``: a run, several runs, a study; the pages of a training; one sentence for each mistake."""

from __future__ import annotations

import json
import logging

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from saki.cli import run_pages
from saki.cli.main import main
from saki.lab import student_path, training_problems
from saki.models import load_tokenizer
from saki.rollout.storage import SCHEMA_VERSION
from tests.analysis import made_study
from tests.analysis.trace import made_rollouts as made
from tests.cli.spoken import refused, said


@pytest.fixture
def lab_run(tmp_path):
    """A run on the lab's problems: eight rollouts of six completions, one correction in the second file's row 3."""
    folder = tmp_path / "run"
    tokenizer, problem = load_tokenizer(str(student_path())), training_problems(2, 7)[1]
    ids = tokenizer(f"\\boxed{{{problem.answer}}}<eos>")["input_ids"]
    prompt = torch.tensor([tokenizer(problem.prompt)["input_ids"]] * 6)
    for step in range(1, 9):
        batch = made.batch_of([ids] * 6, corrections={(3, 0): ids[1]} if step == 2 else {})
        values = {**vars(batch), "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt, dtype=torch.bool)}
        made.write_step(folder, step, type(batch)(**{**values, "prompt_keys": torch.ones(6, dtype=torch.long)}))
    lines = [json.dumps(row) + "\n" for row in made_study.metric_rows("saki", 0)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    settings = {"model": "lab/student", "dataset": "lab", "seed": 7, "method": "saki"}
    (folder / "config.resolved.yaml").write_text(yaml.safe_dump(settings))
    return folder


def test_a_run_several_runs_and_a_study(lab_run, tmp_path, capsys):
    assert said(capsys, ["report", str(lab_run)])["report"] == str(lab_run / "report.html")
    text = (lab_run / "report.html").read_text()
    assert "\\boxed{" in text  # decoded by the run's own tokenizer
    assert "step-000002.parquet, row 3: 1 correction" in text
    assert "trace.html" not in text  # there is none
    (lab_run / "trace.html").write_text("")
    assert main(["report", str(lab_run), "-o", str(tmp_path / "pages" / "a.html")]) == 0
    assert 'href="../run/trace.html#step-000002.parquet/3"' in (tmp_path / "pages" / "a.html").read_text()

    study = made_study.make_study(tmp_path / "study")
    runs = [str(study / "runs" / "lab-a" / label / "seed-0") for label in ("trb", "saki")]
    out = said(capsys, ["report", *runs])
    assert out == {"kind": "runs", "folders": runs, "report": str(study / "runs" / "lab-a" / "comparison.html")}
    assert "2 runs side by side" in (study / "runs" / "lab-a" / "comparison.html").read_text()
    assert said(capsys, ["report", str(study)])["report"] == str(study / "report.html")


def test_mistakes_are_one_sentence(lab_run, tmp_path, capsys):
    study = made_study.make_study(tmp_path / "study")
    assert "saki report needs the folder of a run or of a study first" in refused(capsys, ["report"])
    assert "no run folder at" in refused(capsys, ["report", str(tmp_path / "absent")])
    assert "is a study; give one study alone" in refused(capsys, ["report", str(study), str(lab_run)])
    path = lab_run / "rollouts" / "step-000002.parquet"
    assert "is a file; saki report takes the folder" in refused(capsys, ["report", str(path)])
    (study / "results.parquet").write_bytes(b"")
    assert "results.parquet is empty" in refused(capsys, ["report", str(study)])
    whole = path.read_bytes()
    table = pq.read_table(path)
    meta = {b"saki": json.dumps({"schema_version": SCHEMA_VERSION + 1, "facts": {}}).encode()}
    for content, message in (
        (b"", "is empty"),
        (whole[: len(whole) // 2], "not a readable parquet file"),
        (None, f"has schema version {SCHEMA_VERSION + 1}"),
    ):
        if content is None:
            pq.write_table(table.replace_schema_metadata(meta), path)
        else:
            path.write_bytes(content)
        for command in ("report", "view"):
            sentence = refused(capsys, [command, str(lab_run)])
            assert "step-000002.parquet" in sentence
            assert message in sentence
    assert not (lab_run / "report.html").exists()


def test_pages_of_a_training_hold_a_few_completions_and_those_of_the_report(lab_run, monkeypatch):
    monkeypatch.setattr(run_pages, "MAX_COMPLETIONS", 16)
    tokenizer = load_tokenizer(str(student_path()))
    trace, report = run_pages.write_pages(lab_run, tokenizer)
    assert (trace, report) == (lab_run / "trace.html", lab_run / "report.html")
    facts = made.page_facts(trace)
    # Two of six in each of eight files, and the row with the correction.
    rows = list(zip(facts["completions"]["file"], facts["completions"]["row"], strict=True))
    assert [row for file, row in rows if file == 0] == [0, 5]
    assert (1, 3) in rows
    assert len(rows) == 17
    assert set(facts["completions"]["correct"]) == {True}
    assert 'href="trace.html#step-000002.parquet/3"' in report.read_text()


def test_all_ranks_of_a_step_are_in_the_pages(lab_run, monkeypatch):
    for path in sorted((lab_run / "rollouts").iterdir()):
        for rank in (0, 1, 10):
            (path.parent / f"{path.stem}-rank{rank}.parquet").write_bytes(path.read_bytes())
        path.unlink()
    trace, report = run_pages.write_pages(lab_run, load_tokenizer(str(student_path())))
    names = [file["name"] for file in made.page_facts(trace)["files"]]
    assert names[:3] == [f"step-000001-rank{rank}.parquet" for rank in (0, 1, 10)]
    assert len(names) == 24
    assert "24 of 24 files of rollouts read" in report.read_text()


def test_a_fault_in_the_pages_does_not_fail_a_training(lab_run, caplog):
    (lab_run / "rollouts" / "step-000003.parquet").write_bytes(b"PAR1")
    with caplog.at_level(logging.WARNING):
        assert run_pages.write_pages(lab_run, load_tokenizer(str(student_path()))) == (None, None)
    first, second = caplog.messages
    assert "trace.html was not written" in first
    assert first.endswith(f"saki view {lab_run} makes it again")
    assert "report.html was not written" in second
    assert "\n" not in first + second
