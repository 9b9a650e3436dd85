"""The embedded models: a small teacher, its students, the problems they are taught on, and the recipes that made them.

Importing this package loads neither torch nor transformers.
"""

from saki.lab.build import build_model, build_models
from saki.lab.problems import Problem, grade
from saki.lab.recipes import RECIPES, Recipe
from saki.lab.shipped import MODELS, shipped_path, student_path, teacher_path
from saki.lab.splits import TEST_SETS, development_set, test_set, training_problems
from saki.lab.tokenizer import build_tokenizer

__all__ = [
    "MODELS",
    "RECIPES",
    "TEST_SETS",
    "Problem",
    "Recipe",
    "build_model",
    "build_models",
    "build_tokenizer",
    "development_set",
    "grade",
    "shipped_path",
    "student_path",
    "teacher_path",
    "test_set",
    "training_problems",
]
