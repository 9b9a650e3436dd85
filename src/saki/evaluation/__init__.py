"""Evaluation: the student alone on benchmarks, graded, with intervals."""

from saki.evaluation.benchmarks import Benchmark, GradeFunction, grade_each, lab_benchmarks
from saki.evaluation.metrics import (
    Estimate,
    EvaluationResult,
    Interval,
    SetResult,
    bootstrap_interval,
    macro_average,
    mean_at_k,
    pass_at_k,
)
from saki.evaluation.runner import evaluate_model, prompt_key, regrade
from saki.evaluation.samples import SampleSet, read_samples, write_samples
from saki.evaluation.table import markdown_table, text_table

__all__ = [
    "Benchmark",
    "Estimate",
    "EvaluationResult",
    "GradeFunction",
    "Interval",
    "SampleSet",
    "SetResult",
    "bootstrap_interval",
    "evaluate_model",
    "grade_each",
    "lab_benchmarks",
    "macro_average",
    "markdown_table",
    "mean_at_k",
    "pass_at_k",
    "prompt_key",
    "read_samples",
    "regrade",
    "text_table",
    "write_samples",
]
