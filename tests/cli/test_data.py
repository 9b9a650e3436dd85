"""``saki data`` from a file to a file that ``saki train`` takes."""

import json
from pathlib import Path

import pytest

from saki.cli.main import main
from saki.data import load_prompt_dataset

DAPO = Path(__file__).parents[3] / "shared" / "data" / "dapo-math-17k-processed.parquet"


@pytest.fixture
def source(tmp_path):
    rows = [
        {"prompt": "Compute 1+1:", "answer": 2},
        {"prompt": "Compute 1+1:", "answer": 3},
        {"prompt": "Compute 12+34+56+78:", "answer": 180},
        {"prompt": "求 1+1:", "answer": 2},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def test_a_file_is_prepared_and_trained_on(capsys, source, tmp_path):
    out = tmp_path / "prompts.parquet"
    words = ["--language", "no_cjk", "--deduplicate", "--tokenizer", "lab/student", "--max_prompt_length", "8"]
    assert main(["data", str(source), *words, "--out", str(out), "--json"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    counts = json.loads(last)
    assert counts["rows"] == 4
    assert counts["unique_prompts"] == 3
    assert counts["conflicting_answers"] == 1
    assert counts["dropped"] == {"empty": 0, "no_answer": 0, "language": 1, "duplicate": 1, "too_long": 1}
    assert counts["kept"] == 1
    assert any("-1  Chinese" in line for line in table)
    assert "not looked at" not in "\n".join(table)
    prepared = load_prompt_dataset(out)
    assert prepared[:] == {"prompt": ["Compute 1+1:"], "answer": ["2"], "index": ["0"]}
    argv = ["train", "--model", "lab/student", "--teacher_model", "lab/teacher", "--dataset", str(out)]
    argv += ["--max_steps", "1"]
    argv += ["--prompts_per_step", "1", "--num_generations", "2", "--per_device_train_batch_size", "2"]
    argv += ["--max_completion_length", "4", "--use_cpu", "true", "--out", str(tmp_path / "run")]
    assert main(argv) == 0
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    for line in ("| Initial model | lab/student |", "| Teacher | lab/teacher |", f"| Prompts | {out} |"):
        assert line in card.splitlines()


def test_filters_that_are_off_say_so(capsys, source):
    assert main(["data", str(source)]) == 0
    text = capsys.readouterr().out
    assert text.count("not looked at") == 3
    assert "nothing was written" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "folder"], "names a parquet file, got 'folder'"),
        (["--out", "rows.parquet"], "is there already"),
        (["--language", "english"], "language must be one of any, no_cjk"),
        (["--max_prompt_length", "9"], "give the model's --tokenizer"),
        (["--strip_suffix", "no such end"], "no prompt ends in strip_suffix"),
        (["--prompt_column", "question"], "or name it with saki data --prompt_column"),
        (["--out", "/proc/x.parquet"], "cannot write to /proc"),
        (["--out", "rows.parquet/x.parquet"], "rows.parquet is a file"),
    ],
)
def test_mistakes(capsys, source, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.parquet").touch()
    assert main(["data", str(source), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_empty_prompts_of_a_csv_file_are_counted(capsys, tmp_path):
    (tmp_path / "rows.csv").write_text('prompt,answer\nCompute 1+1:,2\n,3\n"",4\n')
    assert main(["data", str(tmp_path / "rows.csv"), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (counts["kept"], counts["dropped"]["empty"]) == (1, 2)


@pytest.mark.skipif(not DAPO.exists(), reason="the DAPO file is not here")
def test_the_dapo_file(capsys):
    assert main(["data", str(DAPO), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (counts["rows"], counts["unique_prompts"], counts["kept"]) == (17_917, 17_398, 17_917)
    assert set(counts["dropped"].values()) == {0}
