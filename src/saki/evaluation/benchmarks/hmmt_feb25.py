"""HMMT February 2025: 30 problems. Not among the paper's seven; kept apart so that nobody takes it for 2026."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

HMMT_FEB25 = BenchmarkSpec(
    name="hmmt_feb25",
    title="HMMT Feb 2025",
    num_problems=30,
    hub_id="MathArena/hmmt_feb_2025",
    split="train",
    question_fields=("problem",),
    license="CC BY-NC-SA 4.0",
    file_names=("hmmt_feb_2025", "HMMT25"),
)
