"""Benchmarks, one small file each."""

from saki.evaluation.benchmarks.base import Benchmark, GradeFunction, grade_each
from saki.evaluation.benchmarks.lab import lab_benchmarks

__all__ = ["Benchmark", "GradeFunction", "grade_each", "lab_benchmarks"]
