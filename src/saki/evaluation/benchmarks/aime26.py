"""AIME 2026, I and II: 30 problems, whole numbers from 0 to 999."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

AIME26 = BenchmarkSpec(
    name="aime26",
    title="AIME 2026",
    num_problems=30,
    hub_id="MathArena/aime_2026",
    split="train",
    revision="d2de22f3c656b4f56cf8981212186377d1e23bc3",
    question_fields=("problem",),
    license="CC BY-NC-SA 4.0",
    file_names=("aime_2026", "AIME2026"),
)
