"""Verdicts: hostile pairs, every gold answer of local copies of the benchmarks, and what never may be right."""

from __future__ import annotations

import pytest

from saki.evaluation import BENCHMARKS, GradingPool, load_benchmark
from saki.evaluation.grading import compare_answers, grade_completion
from tests.evaluation.grading.hostile_pairs import EQUAL, UNEQUAL
from tests.evaluation.local_copies import LOCAL_COPIES, LOCAL_NAMES

pytest.importorskip("math_verify")

EXCEPTIONS = {
    # The gold answer is a description in words, with a symbol that math-verify does not know.
    ("olympiadbench", 73): r"\mho(a)=0",
    # The gold answer is damaged: a letter has slipped in before the interval.
    ("olympiadbench", 96): "t(0,4]",
}
"""Gold answers that only equal text can show to be right."""


def test_the_table_is_large_and_has_no_pair_twice():
    assert len({*EQUAL, *UNEQUAL}) == len(EQUAL) + len(UNEQUAL) >= 60


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_answers(gold, answer):
    assert compare_answers(answer, gold) == "correct"


@pytest.mark.parametrize(("gold", "answer"), UNEQUAL)
def test_unequal_answers(gold, answer):
    assert compare_answers(answer, gold) == "incorrect"


def test_only_the_last_box_counts_for_a_single_answer():
    assert grade_completion(r"\boxed{5} ... wait, \boxed{6}", "6") == "correct"
    assert grade_completion(r"\boxed{5} ... wait, \boxed{6}", "5") == "incorrect"


def test_spaces_and_commas_of_three_digits_in_boxes():
    assert grade_completion(r"\boxed{5\ }", "5") == "correct"
    assert grade_completion(r"\boxed{101} and \boxed{103}", "101,103") == "correct"
    assert grade_completion(r"\boxed{58} and \boxed{500}", "58,500") == "incorrect"


def test_several_boxes_may_answer_a_question_with_several_answers():
    assert grade_completion(r"The roots are \boxed{1} and \boxed{-2}.", "1,-2") == "correct"
    assert grade_completion(r"\boxed{7}, no: \boxed{1} and \boxed{-2}.", "1,-2") == "incorrect"
    assert grade_completion(r"First \boxed{1}. In all: \boxed{1, -2}", "1,-2") == "correct"


def test_no_box_and_no_expression_are_unparsed():
    assert grade_completion("The answer is 5.", "5") == "unparsed"
    assert grade_completion(r"\boxed{\frac{1}{", "5") == "unparsed"
    assert grade_completion(r"\boxed{\mho(((}", "5") == "unparsed"


def test_without_the_repair_powers_of_ten_are_misread():
    assert grade_completion(r"\boxed{10^{-5}}", "1e-5") == "correct"
    assert grade_completion(r"\boxed{10^{-5}}", "1e-5", e_notation=False) == "incorrect"


@pytest.fixture(scope="module")
def golds():
    """Gold answers of every local copy."""
    if not LOCAL_COPIES.is_dir():
        pytest.skip("no local copies of the benchmarks")
    with GradingPool() as pool:
        return {name: load_benchmark(BENCHMARKS[name], pool, data_dir=LOCAL_COPIES).answers for name in LOCAL_NAMES}


@pytest.mark.slow
def test_every_gold_equals_itself_by_meaning(golds):
    cases = [(name, index, gold) for name, answers in golds.items() for index, gold in enumerate(answers)]
    assert len(cases) == 500 + 30 + 40 + 272 + 675 + 30
    with GradingPool() as pool:
        verdicts = pool.grade(
            [rf"So, as was to be found, the answer is $\boxed{{{gold}}}$." for _, _, gold in cases],
            [gold for _, _, gold in cases],
            text_equality=False,
        )
    failed = {
        (name, index): gold
        for (name, index, gold), verdict in zip(cases, verdicts, strict=True)
        if verdict != "correct"
    }
    assert failed.keys() == EXCEPTIONS.keys()
    assert all(EXCEPTIONS[key] in gold for key, gold in failed.items())


@pytest.mark.slow
def test_no_gold_equals_the_next_problems_unless_the_two_are_the_same(golds):
    cases = [
        (name, index, gold, answers[(index + 1) % len(answers)])
        for name, answers in golds.items()
        for index, gold in enumerate(answers)
    ]
    with GradingPool() as pool:
        verdicts = pool.grade([rf"\boxed{{{gold}}}" for *_, gold, _ in cases], [other for *_, other in cases])
    right = {(name, index) for (name, index, *_), verdict in zip(cases, verdicts, strict=True) if verdict == "correct"}
    same_text = {(name, index) for name, index, gold, other in cases if gold == other}
    assert right - same_text == {("math500", 22)}  # 5 and x=5
    assert same_text <= right
