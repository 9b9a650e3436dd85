"""Benchmarks, one small file each."""

from saki.evaluation.benchmarks.base import Benchmark, GradeFunction, grade_each
from saki.evaluation.benchmarks.catalog import BENCHMARKS, PAPER_BENCHMARKS
from saki.evaluation.benchmarks.lab import lab_benchmarks
from saki.evaluation.benchmarks.rows import BenchmarkDataError
from saki.evaluation.benchmarks.spec import PROMPT_SUFFIX, BenchmarkSpec, graders, load_benchmark

__all__ = [
    "BENCHMARKS",
    "PAPER_BENCHMARKS",
    "PROMPT_SUFFIX",
    "Benchmark",
    "BenchmarkDataError",
    "BenchmarkSpec",
    "GradeFunction",
    "grade_each",
    "graders",
    "lab_benchmarks",
    "load_benchmark",
]
