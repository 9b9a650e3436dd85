"""Evaluation: the student alone on benchmarks, graded, with intervals."""

from saki.evaluation.benchmarks import (
    BENCHMARKS,
    PAPER_BENCHMARKS,
    PROMPT_SUFFIX,
    Benchmark,
    BenchmarkDataError,
    BenchmarkSpec,
    GradeFunction,
    grade_each,
    graders,
    lab_benchmarks,
    load_benchmark,
)
from saki.evaluation.grading import GradingPool, GradingUnavailableError, Verdict, check_math_verify, grade_completion
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
from saki.evaluation.prompts import prompt_key, render_benchmarks
from saki.evaluation.runner import evaluate_model, regrade
from saki.evaluation.samples import SampleSet, read_samples, read_samples_file, regrade_samples, write_samples
from saki.evaluation.table import markdown_table, text_table

__all__ = [
    "BENCHMARKS",
    "PAPER_BENCHMARKS",
    "PROMPT_SUFFIX",
    "Benchmark",
    "BenchmarkDataError",
    "BenchmarkSpec",
    "Estimate",
    "EvaluationResult",
    "GradeFunction",
    "GradingPool",
    "GradingUnavailableError",
    "Interval",
    "SampleSet",
    "SetResult",
    "Verdict",
    "bootstrap_interval",
    "check_math_verify",
    "evaluate_model",
    "grade_completion",
    "grade_each",
    "graders",
    "lab_benchmarks",
    "load_benchmark",
    "macro_average",
    "markdown_table",
    "mean_at_k",
    "pass_at_k",
    "prompt_key",
    "read_samples",
    "read_samples_file",
    "regrade",
    "regrade_samples",
    "render_benchmarks",
    "text_table",
    "write_samples",
]
