"""What is rewritten before math-verify sees an answer."""

from __future__ import annotations

import pytest

from saki.evaluation.grading.rewriting import plain_words, repair_e_notation, rewrite


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("1e-5", r"1 \times 10^{-5}"),
        ("4.5E33", r"4.5 \times 10^{33}"),
        ("e^{2}", "e^{2}"),
        ("3e^{t}", "3e^{t}"),
        ("2e", "2e"),
        ("x2e5", "x2e5"),
    ],
)
def test_e_notation(text, repaired):
    assert repair_e_notation(text) == repaired


def test_rows_of_a_matrix_stay_apart():
    matrix = r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}"
    assert rewrite(matrix) == matrix


@pytest.mark.parametrize("text", [r"1{,}234{,}567", r"$3$, $4$.", r"\dfrac12", "1e-5"])
def test_rewriting_twice_changes_nothing_more(text):
    assert rewrite(rewrite(text)) == rewrite(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"\text{Evelyn}", "evelyn"),
        (r"\textbf{(C)}", "c"),
        ("even", "even"),
        ("x", None),
        ("ab+c", None),
        ("5", None),
        (r"\text{5 cm}", None),
    ],
)
def test_words(text, words):
    assert plain_words(text) == words
