import json
from pathlib import Path

import datasets
import pytest

from saki.data import DataLoadError, load_prompt_dataset, render_prompts

ROWS = [
    {"prompt": [{"role": "user", "content": f"question {index}"}], "reward_model": {"ground_truth": str(index)}}
    for index in range(3)
]
PLAIN = [{"question": f"q{index}", "solution": index} for index in range(4)]


@pytest.fixture(autouse=True)
def _private_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def _write(rows, path):
    dataset = datasets.Dataset.from_list(rows)
    if path.suffix == ".parquet":
        dataset.to_parquet(path)
    elif path.suffix == ".csv":
        dataset.to_csv(path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".jsonl"])
def test_ground_truth_becomes_the_answer(tmp_path, suffix):
    dataset = load_prompt_dataset(_write(ROWS, tmp_path / f"data{suffix}"))
    assert dataset["answer"][:] == ["0", "1", "2"]
    assert dataset[1]["prompt"] == ROWS[1]["prompt"]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_columns_can_be_named(tmp_path, suffix):
    path = _write(PLAIN, tmp_path / f"data{suffix}")
    dataset = load_prompt_dataset(path, prompt_column="question", answer_column="solution")
    assert dataset["prompt"][:] == ["q0", "q1", "q2", "q3"]
    assert dataset["answer"][:] == [0, 1, 2, 3]
    with pytest.raises(DataLoadError, match=r"no 'prompt' column, only \['question', 'solution'\]"):
        load_prompt_dataset(path)


def test_an_answer_column_is_left_alone(tmp_path):
    rows = [{**row, "answer": "given"} for row in ROWS]
    assert set(load_prompt_dataset(_write(rows, tmp_path / "data.parquet"))["answer"]) == {"given"}


def test_folders_keep_splits_apart(tmp_path):
    _write(ROWS[:1], tmp_path / "train-00000.parquet")
    _write(ROWS[1:2], tmp_path / "train-00001.parquet")
    assert load_prompt_dataset(tmp_path)["answer"][:] == ["0", "1"]
    _write(ROWS[2:], tmp_path / "test-00000.parquet")
    assert load_prompt_dataset(tmp_path, "test")["answer"][:] == ["2"]
    with pytest.raises(DataLoadError, match=r"has the splits \['test', 'train'\]; choose one"):
        load_prompt_dataset(tmp_path)
    with pytest.raises(DataLoadError, match="whose name begins with 'dev'"):
        load_prompt_dataset(tmp_path, "dev")
    _write(ROWS, tmp_path / "train.jsonl")
    with pytest.raises(DataLoadError, match="mixes"):
        load_prompt_dataset(tmp_path, "train")


def test_saved_data_sets_are_read(tmp_path):
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(tmp_path / "one")
    assert len(load_prompt_dataset(tmp_path / "one")) == 3
    datasets.DatasetDict({"train": saved}).save_to_disk(tmp_path / "two")
    assert len(load_prompt_dataset(tmp_path / "two", "train")) == 3
    with pytest.raises(DataLoadError, match=r"has the splits \['train'\], got split None"):
        load_prompt_dataset(tmp_path / "two")


@pytest.mark.parametrize("name", ["/no/such/file.parquet", "./missing", "missing.jsonl", "a/b/c", ""])
def test_missing_paths_are_named(name):
    with pytest.raises(DataLoadError, match="there is no data set at"):
        load_prompt_dataset(name)


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "data.parquet").write_bytes(b"not parquet")
    (tmp_path / "data.jsonl").write_text('{"prompt": ')
    (tmp_path / "data.txt").write_text("a")
    with pytest.raises(DataLoadError, match=r"could not read the data set .*data\.parquet"):
        load_prompt_dataset(tmp_path / "data.parquet")
    with pytest.raises(DataLoadError, match=r"line 1 of .*data\.jsonl' is not valid JSON"):
        load_prompt_dataset(tmp_path / "data.jsonl")
    with pytest.raises(DataLoadError, match=r"ends in '\.txt'"):
        load_prompt_dataset(tmp_path / "data.txt")
    with pytest.raises(DataLoadError, match="a single file has no split"):
        load_prompt_dataset(tmp_path / "data.jsonl", "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataLoadError, match=r"has no \.parquet"):
        load_prompt_dataset(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "null\n", "line 1 of .* holds a NoneType, expected an object"),
        ("b.jsonl", '\n\n  null\n{"prompt": "a"}\n', "line 3 of .* holds a NoneType, expected an object"),
        ("c.json", "null", "begins with 'n', expected JSON objects"),
        ("d.json", '"text"', "begins with '\"', expected JSON objects"),
    ],
)
def test_what_begins_with_no_object_is_refused_before_the_reader(tmp_path, monkeypatch, name, text, message):
    """At a null the reader would end the process, and with it the tests."""
    monkeypatch.setattr("datasets.load_dataset", None)
    (tmp_path / name).write_text(text)
    with pytest.raises(DataLoadError, match=message):
        load_prompt_dataset(tmp_path / name)


def test_lines_of_blanks_are_skipped(tmp_path):
    lines = [json.dumps(row) for row in ROWS]
    (tmp_path / "data.jsonl").write_text("\n   \n".join(lines) + "\n \t\n\n")
    assert load_prompt_dataset(tmp_path / "data.jsonl")["answer"][:] == ["0", "1", "2"]
    (tmp_path / "blank.jsonl").write_text(" \n  \n")
    with pytest.raises(DataLoadError, match=r"blank\.jsonl' has no rows"):
        load_prompt_dataset(tmp_path / "blank.jsonl")


def test_a_real_training_file(make_tokenizer):
    path = Path(__file__).parents[3] / "shared/data/dapo-math-17k-processed.parquet"
    if not path.exists():
        pytest.skip("the training file is not here")
    dataset = load_prompt_dataset(path)
    assert len(dataset) == 17917
    assert all(answer.lstrip("-").isdigit() for answer in dataset["answer"])
    rendered = render_prompts(dataset.select(range(200)), make_tokenizer(), max_prompt_length=100)
    assert len(rendered.prompts) + rendered.dropped["too_long"] == 200
    assert all(dataset[row]["prompt"][0]["role"] == "user" for row in rendered.rows[:5])
