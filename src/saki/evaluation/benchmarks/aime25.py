"""AIME 2025, I and II: 30 problems, whole numbers from 0 to 999."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

AIME25 = BenchmarkSpec(
    name="aime25",
    title="AIME 2025",
    num_problems=30,
    hub_id="math-ai/aime25",
    revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
    question_fields=("problem",),
    file_names=("aime_2025", "AIME2025"),
)
