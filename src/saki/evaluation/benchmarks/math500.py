"""MATH-500: 500 problems of the MATH test set."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

# The card names no licence; it points to the prm800k repository as the source.
MATH500 = BenchmarkSpec(
    name="math500",
    title="MATH-500",
    num_problems=500,
    hub_id="HuggingFaceH4/MATH-500",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    question_fields=("problem",),
    file_names=("MATH-500",),
)
