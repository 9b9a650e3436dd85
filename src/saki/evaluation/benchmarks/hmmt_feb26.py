"""HMMT February 2026: 33 problems, answers as LaTeX."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

HMMT_FEB26 = BenchmarkSpec(
    name="hmmt_feb26",
    title="HMMT Feb 2026",
    num_problems=33,
    hub_id="MathArena/hmmt_feb_2026",
    split="train",
    revision="02fba4f74d8e68e73e66a02d540fd979c05c274c",
    question_fields=("problem",),
    license="CC BY-NC-SA 4.0",
    file_names=("hmmt_feb_2026", "HMMT26"),
)
