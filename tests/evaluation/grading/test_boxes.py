"""Which box of a completion counts."""

from __future__ import annotations

import pytest

from saki.evaluation.grading import boxes, last_box


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{5}, wait, \boxed{6}", "6"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right."),
        (r"\boxed{5}. My answer stands within \boxed{}.", "5"),  # the prompt's own words
        (r"\boxed{5} and so \boxed{\frac{1}{", "5"),  # cut by the length cap
        (r"\boxed{\boxed{7}}", "7"),
        (r"\fbox{8}", "8"),
        (r"\boxed {9}", "9"),
        (r"\boxed{ 5\ }", "5"),
        (r"\boxed{5 \ \ }", "5"),
        ("\\boxed{5\\\\ }", "5\\\\"),  # a row break is no space
        ("the answer is 5", None),
        (r"\boxed{5", None),
        ("", None),
    ],
)
def test_last_balanced_box(text, content):
    assert last_box(text) == content


def test_all_boxes_in_order():
    assert boxes(r"\boxed{1} or \boxed{} or \boxed{2}") == ["1", "2"]
