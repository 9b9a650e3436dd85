"""Grading of mathematical answers: math-verify in child processes with a deadline."""

from saki.evaluation.grading.boxes import boxes, last_box
from saki.evaluation.grading.comparison import Verdict, compare_answers, grade_completion
from saki.evaluation.grading.pool import (
    DEADLINE_SECONDS,
    GradingPool,
    GradingUnavailableError,
    check_math_verify,
)

__all__ = [
    "DEADLINE_SECONDS",
    "GradingPool",
    "GradingUnavailableError",
    "Verdict",
    "boxes",
    "check_math_verify",
    "compare_answers",
    "grade_completion",
    "last_box",
]
