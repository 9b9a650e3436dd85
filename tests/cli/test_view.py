"""``saki view``: from files and run folders to a page, and one sentence for each mistake."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from saki.cli.main import main
from saki.lab import student_path, training_problems
from saki.models import load_tokenizer
from saki.rollout import write_rollouts
from tests.analysis.trace import made_rollouts as made
from tests.cli.spoken import refused


@pytest.fixture(scope="module")
def lab_run(tmp_path_factory):
    """A run folder on the lab's problems: prompt 1 answered rightly by sample 0, wrongly by sample 1."""
    folder = tmp_path_factory.mktemp("run")
    tokenizer, problem = load_tokenizer(str(student_path())), training_problems(3, 7)[1]
    texts = [f"\\boxed{{{problem.answer}}}<eos>", f"\\boxed{{{int(problem.answer) + 1}}}<eos>"]
    prompt = torch.tensor([tokenizer(problem.prompt)["input_ids"]] * 2)
    batch = made.batch_of([tokenizer(text)["input_ids"] for text in texts])
    values = {**vars(batch), "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt, dtype=torch.bool)}
    batch = type(batch)(**{**values, "prompt_keys": torch.tensor([1, 1])})
    made.write_step(folder, 4, batch)
    (folder / "config.resolved.yaml").write_text(yaml.safe_dump({"model": "lab/student", "dataset": "lab", "seed": 7}))
    return folder


def verdicts_of(page):
    """What the page holds, read as its script does."""
    import base64
    import gzip

    text = page.read_text()
    packed = text.split('id="payload">')[1].split("<")[0]
    content = gzip.decompress(base64.b64decode(packed))
    facts = json.loads(content[4 : 4 + int.from_bytes(content[:4], "little")])
    return facts["completions"]["correct"], facts


def test_a_run_folder_becomes_a_page_with_text_and_grades(lab_run, capsys):
    assert main(["view", str(lab_run), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    page = lab_run / "trace.html"
    assert said == {
        "completions": 2,
        "tokens": said["tokens"],
        "corrections": 0,
        "files": 1,
        "decoded": True,
        "page": str(page),
    }
    correct, facts = verdicts_of(page)
    assert correct == [True, False]
    assert "\\boxed{" in facts["texts"]
    assert facts["title"] == f"Trace of {lab_run.name}"
    page.unlink()


def test_answers_of_other_prompts_are_refused(lab_run, tmp_path, capsys):
    other = tmp_path / "prompts.jsonl"
    other.write_text("".join(json.dumps({"prompt": f"What is {n}?", "answer": str(n)}) + "\n" for n in range(3)))
    out = tmp_path / "t.html"
    assert main(["view", str(lab_run), "-o", str(out), "--answers", str(other)]) == 2
    assert "is not the one that was rolled out" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"prompt_key": [1, 1], "sample_index": [1, 0], "correct": [True, None]}, [None, True]),
        ({"prompt_key": [1, 1], "sample_index": [0, 0], "step": [4, 5], "correct": [False, True]}, [False, None]),
        # The samples of an evaluation: other draws of the same problem are not these completions.
        (
            {"problem_index": [1], "sample_index": [0], "correct": [True], "completion": ["something else"]},
            [None, None],
        ),
    ],
)
def test_verdicts_from_a_file(lab_run, tmp_path, table, expected):
    pq.write_table(pa.table(table), tmp_path / "samples.parquet")
    out = tmp_path / "t.html"
    assert main(["view", str(lab_run), "-o", str(out), "--samples", str(tmp_path / "samples.parquet")]) == 0
    assert verdicts_of(out)[0] == expected


def test_a_file_of_no_run_shows_ids_and_says_so(tmp_path, capsys):
    path = tmp_path / "alone.parquet"
    write_rollouts(path, made.batch_of([[1, 2]]))
    assert main(["view", str(path)]) == 0
    _, facts = verdicts_of(tmp_path / "trace.html")
    assert (facts["decoded"], facts["texts"]) == (False, [])
    assert main(["view", str(path), "--model", "lab/student"]) == 0
    assert verdicts_of(tmp_path / "trace.html")[1]["decoded"]


def test_several_runs_in_one_page(lab_run, tmp_path):
    made.write_step(tmp_path, 9, made.batch_of([[5, 6]]), method="trb")
    (tmp_path / "config.resolved.yaml").write_text("model: lab/teacher\n")
    out = tmp_path / "both.html"
    assert main(["view", str(lab_run), str(tmp_path), "-o", str(out)]) == 0
    _, facts = verdicts_of(out)
    assert [(each["method"], each["step"]) for each in facts["files"]] == [("saki", 4), ("trb", 9)]
    assert main(["view", str(lab_run), str(tmp_path), "-o", str(out), "--steps", "9"]) == 2  # not in the first


def test_the_page_of_several_runs_leaves_those_of_the_runs_alone(lab_run, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(lab_run, tmp_path / name)
        (tmp_path / name / "trace.html").write_text("its own")
    assert main(["view", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert len(verdicts_of(tmp_path / "traces.html")[1]["files"]) == 2
    assert {(tmp_path / name / "trace.html").read_text() for name in ("a", "b")} == {"its own"}


@pytest.mark.parametrize("command", ["view", "report"])
def test_a_page_that_cannot_be_written_is_told_before_the_work(lab_run, tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr("saki.cli.view.read_trace", None)
    monkeypatch.setattr("saki.cli.report.write_report", None)
    for out in (str(tmp_path), "/proc/x.html", "/dev/null/x.html"):
        assert "saki: cannot write to" in refused(capsys, [command, str(lab_run), "-o", out])


def _write_parquet(path, **change):
    table = pa.table({"completion_ids": [[1]]})
    return pq.write_table(table.replace_schema_metadata(change.get("metadata")), path)


def _cut(path):
    write_rollouts(path, made.batch_of([[1, 2, 3]]))
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b""), "is not a readable parquet file (it is empty)"),
        (_cut, "is not a readable parquet file"),
        (_write_parquet, "is parquet, but not a rollout file of saki"),
        (
            lambda path: _write_parquet(path, metadata={"saki": '{"schema_version": 99, "facts": {}}'}),
            "has schema version 99, this saki reads 2",
        ),
        (lambda path: _write_parquet(path, metadata={"saki": "{"}), "has damaged metadata"),
        (
            lambda path: _write_parquet(path, metadata={"saki": '{"schema_version": 2, "facts": {}}'}),
            "lacks the columns prompt_key",
        ),
        (lambda path: None, "there is no rollout file"),
    ],
)
def test_files_that_cannot_be_shown_are_one_sentence(tmp_path, capsys, damage, message):
    path = tmp_path / "rollouts.parquet"
    damage(path)
    assert main(["view", str(path), "-o", str(tmp_path / "t.html")]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert said.startswith("saki: ")
    assert "\n" not in said
    assert not (tmp_path / "t.html").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "needs rollouts first"),
        (["RUN", "--steps", "1,x"], "steps must be whole numbers separated by commas"),
        (["RUN", "--steps", "²"], "steps must be whole numbers separated by commas"),
        (["RUN", "--limit", "0"], "limit"),
        (["RUN", "--step", "1"], "steps"),
        (["RUN", "--answers", "lab", "--samples", "s.parquet"], "give one of the two"),
        (["RUN", "--samples", "absent.parquet"], "check --samples"),
        (["RUN", "--max_tokens", "1"], "more than max_tokens = 1"),
        (["RUN", "--model", "lab/nobody"], "there is no model"),
    ],
)
def test_mistakes_are_one_sentence(lab_run, capsys, argv, message):
    assert main(["view", *(str(lab_run) if word == "RUN" else word for word in argv)]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
