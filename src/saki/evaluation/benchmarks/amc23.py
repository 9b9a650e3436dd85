"""AMC 12 of 2023: 40 problems, reworded to ask for a number."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

AMC23 = BenchmarkSpec(
    name="amc23",
    title="AMC 2023",
    num_problems=40,
    hub_id="math-ai/amc23",
    revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
    question_fields=("question", "problem"),
    file_names=("amc_2023", "AMC2023"),
)
