"""Names on the command line into benchmarks."""

from __future__ import annotations

import pytest

from saki import lab
from saki.config import UsageError
from saki.config.benchmarks import benchmark_choices, benchmark_records, recorded_specs
from saki.evaluation import BENCHMARKS, PAPER_BENCHMARKS, BenchmarkSpec


def test_names_and_groups():
    assert benchmark_choices("lab") == list(lab.TEST_SETS)
    assert benchmark_choices("paper") == list(PAPER_BENCHMARKS)
    assert benchmark_choices("math500, gcd") == [BENCHMARKS["math500"], "gcd"]


def test_a_yaml_file_of_one_or_several(tmp_path):
    one = tmp_path / "one.yaml"
    one.write_text("name: mine\npath: mine.jsonl\nanswer_fields: solution\n")
    (spec,) = benchmark_choices(str(one))
    assert spec == BenchmarkSpec("mine", path=str(tmp_path / "mine.jsonl"), answer_fields=("solution",))
    more = tmp_path / "more.yml"
    more.write_text("a:\n  hub_id: who/a\n  question_fields: [q, question]\nb:\n  hub_id: who/b\n  num_problems: 5\n")
    first, second = benchmark_choices(f"aime25,{more}")[1:]
    assert first == BenchmarkSpec("a", hub_id="who/a", question_fields=("q", "question"))
    assert second.num_problems == 5


def test_a_module(tmp_path, monkeypatch):
    (tmp_path / "users_benchmarks.py").write_text(
        "from saki.evaluation import BenchmarkSpec\nMINE = BenchmarkSpec('mine', hub_id='who/mine')\nOTHER = 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert benchmark_choices("users_benchmarks:MINE")[0].hub_id == "who/mine"
    with pytest.raises(UsageError, match=r"is a int, expected a saki\.evaluation\.BenchmarkSpec"):
        benchmark_choices("users_benchmarks:OTHER")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("", "name at least one"),
        ("math50", "did you mean 'math500'"),
        ("no_such:THING", "cannot import benchmark 'no_such:THING'"),
        (":", "write it as package.module:ATTRIBUTE"),
        ("/no/such.yaml", "there is no configuration file"),
        ("amc23,amc23", "benchmark amc23 is named twice in benchmarks, by amc23; name it once"),
        ("lab,gcd", "benchmark gcd is named twice in benchmarks, by lab and by gcd"),
    ],
)
def test_mistakes(names, sentence):
    with pytest.raises(UsageError, match=sentence):
        benchmark_choices(names)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: mine\nhub: who/mine\n", "did you mean 'hub_id'"),
        ("mine: who/mine\n", "must hold the fields of a benchmark"),
        ("name: mine\npath: 5\n", "path of benchmark mine must be text, got 5"),
        ("name: mine\npath: a.jsonl\nnum_problems: '3'\n", "num_problems of benchmark mine must be a whole number"),
        ("name: mine\npath: a.jsonl\nnum_problems: 0\n", "num_problems of benchmark mine must be at least 1"),
        ("name: mine\nhub_id: who/mine\nrevision: 1234567\n", "revision of benchmark mine must be text, got 1234567"),
        ("name: mine\nhub_id: who/mine\nsplit:\n", "split of benchmark mine must be text"),
        (
            "name: mine\nhub_id: who/mine\nanswer_fields: [1]\n",
            "answer_fields of benchmark mine must be a list of texts",
        ),
        ("name: mine\nhub_id: who/mine\nreports_without_repair: 3\n", "must be true or false, got 3"),
        ("name: mine\n", "neither a hub_id nor a path"),
        ("name: ../mine\npath: a.jsonl\n", "names a file"),
    ],
)
def test_mistakes_in_files(tmp_path, text, sentence):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        benchmark_choices(str(path))


def test_a_file_that_names_a_shipped_benchmark_beside_it(tmp_path):
    (tmp_path / "m.yaml").write_text("name: math500\npath: a.jsonl\n")
    with pytest.raises(UsageError, match="benchmark math500 is named twice in benchmarks, by math500 and by"):
        benchmark_choices(f"math500,{tmp_path / 'm.yaml'}")


def test_records_give_the_same_specs_back_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text("mine:\n  path: a.jsonl\n  answer_fields: [x]\nother:\n  hub_id: who/other\n")
    (tmp_path / "recorded_benchmarks.py").write_text(
        "from saki.evaluation import BenchmarkSpec\nOWN = BenchmarkSpec('own', hub_id='who/own', grade=print)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    records = benchmark_records("gcd,minerva,m.yaml,recorded_benchmarks:OWN")
    (tmp_path / "m.yaml").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    specs = recorded_specs(records, tmp_path / "records.yaml")
    assert specs["minerva"] is BENCHMARKS["minerva"]
    assert specs["mine"] == BenchmarkSpec("mine", path=str(tmp_path / "a.jsonl"), answer_fields=("x",))
    assert specs["other"] == BenchmarkSpec("other", hub_id="who/other")
    assert specs["own"].grade is print
    assert "gcd" not in specs
