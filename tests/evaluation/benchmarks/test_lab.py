"""Benchmarks as records, and the lab's sets among them."""

from __future__ import annotations

import pytest

from saki import lab
from saki.evaluation import Benchmark, grade_each, lab_benchmarks


def make(name: str, prompts: tuple[str, ...] = ("1+1?",), answers: tuple[str, ...] = ("2",)) -> Benchmark:
    return Benchmark(name, prompts, answers, grade_each(lambda completion, answer: completion == answer), "made up")


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "two words", "a/b"])
def test_names_that_cannot_name_a_file_are_refused(name):
    with pytest.raises(ValueError, match="names a file"):
        make(name)


def test_every_prompt_needs_an_answer():
    with pytest.raises(ValueError, match="1 prompts and 0 answers"):
        make("a", answers=())
    with pytest.raises(ValueError, match="at least one"):
        make("a", prompts=(), answers=())


def test_lab_sets_are_the_seven_test_sets_and_grade_their_own_traces():
    benchmarks = lab_benchmarks(num_problems=20)
    assert tuple(benchmark.name for benchmark in benchmarks) == lab.TEST_SETS
    for benchmark in benchmarks:
        problems = lab.test_set(benchmark.name, 20)
        assert benchmark.prompts == tuple(problem.prompt for problem in problems)
        assert all(benchmark.grade([problem.trace for problem in problems], benchmark.answers))
        assert not any(benchmark.grade(["no answer"] * 20, benchmark.answers))


def test_fewer_problems_are_the_first_of_more():
    # The random numbers of a problem are keyed by its index, so this keeps its samples.
    few, more = lab_benchmarks(5)[0], lab_benchmarks(20)[0]
    assert more.prompts[:5] == few.prompts


def test_development_sets_share_no_question_with_test_sets_and_bear_other_names():
    for test, development in zip(lab_benchmarks(20), lab_benchmarks(20, split="development"), strict=True):
        assert development.name == f"development-{test.name}"
        assert not set(test.prompts) & set(development.prompts)


def test_sets_can_be_chosen_and_unknown_splits_are_refused():
    assert [benchmark.name for benchmark in lab_benchmarks(5, names=("gcd", "sum_3"))] == ["gcd", "sum_3"]
    with pytest.raises(ValueError, match="split must be"):
        lab_benchmarks(5, split="train")
