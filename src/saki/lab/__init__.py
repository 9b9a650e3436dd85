"""The embedded pair: a small teacher and student, the problems they are taught on, and the recipes that made them.

Importing this package loads neither torch nor transformers.
"""

from saki.lab.build import build_model, build_pair
from saki.lab.problems import Problem, grade
from saki.lab.shipped import student_path, teacher_path
from saki.lab.splits import TEST_SETS, development_set, test_set, training_problems
from saki.lab.tokenizer import build_tokenizer

__all__ = [
    "TEST_SETS",
    "Problem",
    "build_model",
    "build_pair",
    "build_tokenizer",
    "development_set",
    "grade",
    "student_path",
    "teacher_path",
    "test_set",
    "training_problems",
]
