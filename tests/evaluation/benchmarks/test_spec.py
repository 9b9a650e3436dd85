"""Benchmarks as records: reading, checks of size and fields, and what is told when something is off."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saki.evaluation import (
    BENCHMARKS,
    PAPER_BENCHMARKS,
    PROMPT_SUFFIX,
    BenchmarkDataError,
    BenchmarkSpec,
    load_benchmark,
)
from saki.evaluation.benchmarks import rows as rows_module
from tests.evaluation.local_copies import LOCAL_COPIES, LOCAL_NAMES


def never(completions, answers):
    return [False] * len(completions)


def spec(**changes) -> BenchmarkSpec:
    return BenchmarkSpec(**{"name": "mine", "hub_id": "who/mine", "num_problems": 2, "grade": never, **changes})


def write_jsonl(folder, name, rows):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_papers_seven_in_its_order():
    assert [each.name for each in PAPER_BENCHMARKS] == [
        "math500",
        "hmmt_feb26",
        "aime26",
        "aime25",
        "amc23",
        "minerva",
        "olympiadbench",
    ]
    assert [each.num_problems for each in PAPER_BENCHMARKS] == [500, 33, 30, 30, 40, 272, 675]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_revisions_are_whole_commits_or_said_to_be_open(name):
    revision = BENCHMARKS[name].revision
    assert revision is None or (len(revision) == 40 and set(revision) <= set("0123456789abcdef"))
    assert (revision is None) == (name == "hmmt_feb25")


def test_rows_of_the_hubs_form(tmp_path):
    write_jsonl(tmp_path, "mine.jsonl", [{"problem": "1+1?", "answer": 2}, {"problem": " 2+2? ", "answer": "4"}])
    benchmark = load_benchmark(spec(), None, data_dir=tmp_path)
    assert benchmark.prompts == ("1+1?" + PROMPT_SUFFIX, "2+2?" + PROMPT_SUFFIX)
    assert benchmark.answers == ("2", "4")
    assert benchmark.chat
    assert benchmark.grade is never


def test_rows_with_messages_and_a_suffix_of_their_own(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": f"{i}?{suffix}"}], "reward_model": {"ground_truth": str(i)}}
        for i, suffix in enumerate(("", PROMPT_SUFFIX, "\n" + PROMPT_SUFFIX.strip().replace("{}", "{{}}")))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "Mine-2026.parquet")
    benchmark = load_benchmark(
        spec(num_problems=3, file_names=("Mine-2026",)), None, data_dir=tmp_path, prompt_suffix=" Box it."
    )
    assert benchmark.prompts == ("0? Box it.", "1? Box it.", "2? Box it.")
    assert benchmark.answers == ("0", "1", "2")


def test_a_list_of_answers_becomes_one_answer_with_several_parts(tmp_path):
    write_jsonl(tmp_path, "mine.jsonl", [{"question": "?", "final_answer": ["$1$", "$2$"]}])
    fields = {"answer_fields": ("final_answer",), "num_problems": None}
    assert load_benchmark(spec(**fields), None, data_dir=tmp_path).answers == ("$1$, $2$",)


def test_limit_takes_the_first_and_checks_the_whole_file(tmp_path):
    write_jsonl(tmp_path, "mine.jsonl", [{"problem": str(i), "answer": i} for i in range(2)])
    assert len(load_benchmark(spec(), None, data_dir=tmp_path, limit=1)) == 1
    assert len(load_benchmark(spec(), None, data_dir=tmp_path, limit=9)) == 2
    with pytest.raises(BenchmarkDataError, match="has 2 problems, mine has 3"):
        load_benchmark(spec(num_problems=3), None, data_dir=tmp_path, limit=1)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"answer": "1"}, "row 0 of .* has no problem of mine: expected it in problem or question or prompt"),
        ({"problem": "1?"}, r"has no answer of mine: expected it in answer or reward_model.ground_truth"),
        ({"problem": " ", "answer": "1"}, "has no problem"),
        ({"problem": "1?", "answer": None}, "has no answer"),
        ({"problem": "1?", "answer": {"a": 1}}, "row 0 of .* has the answer .*dict.*expected text, a finite number"),
        ({"problem": "1?", "answer": float("nan")}, "row 0 of .* has the answer 'nan' .float."),
        ({"problem": "1?", "answer": True}, "row 0 of .* has the answer 'True' .bool."),
        ({"problem": "1?", "answer": ["1", None]}, "row 0 of .* has the answer 'None'"),
    ],
)
def test_missing_fields_are_named(tmp_path, row, sentence):
    write_jsonl(tmp_path, "mine.jsonl", [row])
    with pytest.raises(BenchmarkDataError, match=sentence):
        load_benchmark(spec(num_problems=1), None, data_dir=tmp_path)


def test_lines_of_blanks_and_of_unicode_separators(tmp_path):
    (tmp_path / "mine.jsonl").write_text(
        '  \n{"problem": "1\u2028?", "answer": 1}\n \n{"problem": "2?", "answer": 2}\n'
    )
    assert load_benchmark(spec(), None, data_dir=tmp_path).answers == ("1", "2")


def test_files_that_are_not_there_or_damaged(tmp_path):
    with pytest.raises(BenchmarkDataError, match=r"has no file for mine; .*it holds no such files"):
        load_benchmark(spec(), None, data_dir=tmp_path)
    with pytest.raises(BenchmarkDataError, match="there is no folder"):
        load_benchmark(spec(), None, data_dir=tmp_path / "no")
    (tmp_path / "mine.jsonl").write_text("{")
    with pytest.raises(BenchmarkDataError, match="cannot read"):
        load_benchmark(spec(), None, data_dir=tmp_path)
    (tmp_path / "mine.jsonl").write_text("5\n")
    with pytest.raises(BenchmarkDataError, match="something besides JSON objects"):
        load_benchmark(spec(), None, data_dir=tmp_path)
    (tmp_path / "MINE.parquet").write_bytes(b"no")
    with pytest.raises(BenchmarkDataError, match="keep one of the two"):
        load_benchmark(spec(), None, data_dir=tmp_path)
    (tmp_path / "mine.jsonl").unlink()
    with pytest.raises(BenchmarkDataError, match="cannot read"):
        load_benchmark(spec(), None, data_dir=tmp_path)


def test_the_hub_is_asked_for_the_pinned_revision(monkeypatch):
    asked = []

    def load_dataset(name, **options):
        asked.append((name, options))
        return [{"problem": "1+1?", "answer": 2}] * 2

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    benchmark = load_benchmark(spec(revision="abc", split="train"), None)
    assert asked == [("who/mine", {"split": "train", "revision": "abc"})]
    assert benchmark.source == "who/mine@abc"


def test_a_hub_out_of_reach_is_one_sentence(monkeypatch):
    def load_dataset(name, **options):
        raise ConnectionError("no\nroute")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(BenchmarkDataError, match=r"cannot load who/mine.*no route.*--data_dir"):
        rows_module.hub_rows("who/mine", "test", None)


def test_a_benchmark_needs_a_source():
    with pytest.raises(ValueError, match="neither a hub_id nor a path"):
        BenchmarkSpec(name="mine")


@pytest.mark.skipif(not LOCAL_COPIES.is_dir(), reason="no local copies of the benchmarks")
@pytest.mark.parametrize("name", LOCAL_NAMES)
def test_local_copies_load_as_they_are(name):
    class Pool:
        grade = staticmethod(never)

    benchmark = load_benchmark(BENCHMARKS[name], Pool(), data_dir=LOCAL_COPIES)
    assert len(benchmark) == BENCHMARKS[name].num_problems
    assert all(prompt.count("put your final answer within") == 1 for prompt in benchmark.prompts)


@pytest.mark.skipif(not LOCAL_COPIES.is_dir(), reason="no local copies of the benchmarks")
def test_another_year_does_not_pass_for_the_papers_hmmt(tmp_path):
    (tmp_path / "hmmt_feb26.parquet").write_bytes((LOCAL_COPIES / "HMMT25.parquet").read_bytes())
    with pytest.raises(BenchmarkDataError, match="has 30 problems, hmmt_feb26 has 33"):
        load_benchmark(BENCHMARKS["hmmt_feb26"], None, data_dir=tmp_path)
    with pytest.raises(BenchmarkDataError, match="no file for hmmt_feb26"):
        load_benchmark(BENCHMARKS["hmmt_feb26"], None, data_dir=LOCAL_COPIES)
