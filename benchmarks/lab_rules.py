"""How often the lab's habit students give the answer of their own wrong rule: 40 problems x 8 samples a set.

python benchmarks/lab_rules.py
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from saki import lab
from saki.lab.measure import measure
from saki.lab.problems import KINDS, Working

HABITS = {"habit": "no_carry", "habit_2": "next_row"}
NUM_PROBLEMS = 40


def main() -> None:
    """Print one line a student and set."""
    torch.set_num_threads(1)
    for name, habit in HABITS.items():
        path = str(lab.shipped_path(name))
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
        for test_set in lab.TEST_SETS:
            problems = []
            for problem in lab.test_set(test_set, NUM_PROBLEMS):
                numbers = tuple(int(digits) for digits in re.findall(r"\d+", problem.prompt))
                if test_set == "linear":
                    numbers = (*numbers, 0)  # the solution, which a rule works out anew
                answer = KINDS[test_set].work_out(numbers, Working(habit=habit))[1]
                problems.append(replace(problem, answer=answer))
            share = measure(model, tokenizer, problems, torch.Generator().manual_seed(1)).mean_at_k
            print(f"{name:8} {test_set:14} {share:5.1f}% by its rule", flush=True)


if __name__ == "__main__":
    main()
