"""OlympiadBench: 675 English, text-only, open-ended mathematics problems."""

from saki.evaluation.benchmarks.spec import BenchmarkSpec

# The data set's newer revisions (such as 4faaf1e6) have 674 problems. The pinned one is older and holds one file of
# JSON lines; its number of rows was inferred from the size of that file, so the check of the size has the last word.
OLYMPIADBENCH = BenchmarkSpec(
    name="olympiadbench",
    title="OlympiadBench",
    num_problems=675,
    hub_id="math-ai/olympiadbench",
    revision="04b13155943ca238da32b3bf182826824a022811",
    question_fields=("question", "problem"),
    answer_fields=("final_answer", "answer"),
    file_names=("Olympiad-Bench", "olympiad_bench"),
)
