"""Minerva Math: 272 problems of university courses in the sciences."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

# 58 gold answers are in e-notation, which math-verify misreads, so a level depends on whether that is repaired: both
# are reported.
MINERVA = BenchmarkSpec(
    name="minerva",
    title="Minerva Math",
    num_problems=272,
    hub_id="math-ai/minervamath",
    revision="ee46ddc498933b1977577953250ca5c66be64f96",
    question_fields=("question", "problem"),
    file_names=("minervamath", "minerva_math"),
    reports_without_repair=True,
)
