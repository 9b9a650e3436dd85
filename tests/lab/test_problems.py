import random
import re
import subprocess
import sys

import pytest

from saki import lab
from saki.lab import problems, splits
from saki.lab.problems import KINDS, Working

STEP = re.compile(r"(-?\d+)([-+*/%])(-?\d+)=(-?\d+)|(max|min)\((-?\d+),(-?\d+)\)=(-?\d+)")
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def parse(trace: str) -> tuple[list[bool], str]:
    """Which steps of a trace are right, and the boxed answer."""
    *steps, box = trace.split(";")
    right = []
    for step in steps:
        match = STEP.fullmatch(step)
        assert match, step
        a, symbol, b, result, word, c, d, chosen = match.groups()
        expected = OPERATIONS[word](int(c), int(d)) if word else OPERATIONS[symbol](int(a), int(b))
        right.append(expected == int(chosen if word else result))
    boxed = re.fullmatch(r"\\boxed\{(-?\d+)\}", box)
    assert boxed, box
    return right, boxed[1]


def true_answer(prompt: str) -> int:
    """The answer by a way that shares nothing with the traces."""
    question = prompt.removesuffix(problems.END_OF_PROMPT)
    if question.startswith("Solve"):
        left, right = re.sub(r"(\d*)([xyz])", r"\1*v", question.removeprefix("Solve ")).split("=")
        (solution,) = [v for v in range(1, 41) if eval(left, {"v": v}) == eval(right, {"v": v})]
        return solution
    expression = question.removeprefix("Compute ").replace("gcd", "math.gcd")
    return int(eval(expression, {"math": __import__("math"), "max": max, "min": min}))


@pytest.mark.parametrize("name", KINDS)
def test_every_step_of_a_clean_trace_is_right_and_leads_to_the_answer(name):
    kind, rng = KINDS[name], random.Random(name)
    for _ in range(100):
        problem = kind.problem(kind.draw(rng))
        right, boxed = parse(problem.trace)
        assert right
        assert all(right), problem
        assert boxed == problem.answer
        assert int(problem.answer) == true_answer(problem.prompt)
        assert problem.kind == name
        assert lab.grade(problem.trace, problem.answer)


@pytest.mark.parametrize("name", KINDS)
def test_slips_propagate_and_every_trace_still_parses(name):
    kind, rng = KINDS[name], random.Random(name)
    num_wrong_steps = num_steps = 0
    for _ in range(400):
        numbers = kind.draw(rng)
        trace, answer = kind.work_out(numbers, Working(rng, 0.45))
        right, boxed = parse(trace)
        assert boxed == answer
        if all(right):
            assert trace == kind.problem(numbers).trace
        num_wrong_steps += right.count(False)
        num_steps += len(right)
    # 400 or more draws at 0.45: five standard deviations are at most 0.125.
    assert abs(num_wrong_steps / num_steps - 0.45) < 0.125


def test_working_needs_a_source_of_slips():
    with pytest.raises(ValueError, match="rng is None"):
        Working(slip_rate=0.5)


@pytest.mark.parametrize("name", lab.TEST_SETS)
def test_splits_are_disjoint_distinct_and_repeatable(name):
    test, development = lab.test_set(name), lab.development_set(name)
    assert len(test) == 300
    assert len({p.prompt for p in test}) == len(test)
    assert len({p.prompt for p in development}) == len(development)
    assert {splits.split_of(p.prompt) for p in test} == {"test"}
    assert {splits.split_of(p.prompt) for p in development} == {"development"}
    assert lab.test_set(name) == test
    assert lab.test_set(name, seed=1) != test
    assert lab.test_set(name, 20) == test[:20]


def test_split_is_stable_across_versions():
    # Golden: a change here would leak test questions into the training of the shipped weights.
    prompts = [f"Compute {a}+{a + 7}:" for a in range(12)]
    assert [splits.split_of(p)[:2] for p in prompts] == ["tr"] * 4 + ["te"] + ["tr"] * 5 + ["te", "tr"]


def test_training_problems_are_of_the_training_split_and_cover_every_kind():
    problems_ = lab.training_problems(1000, seed=3)
    assert len(problems_) == 1000
    assert {splits.split_of(p.prompt) for p in problems_} == {"train"}
    assert {p.kind for p in problems_} == set(KINDS)
    assert lab.training_problems(1000, seed=3) == problems_
    assert lab.training_problems(1000, seed=4) != problems_


def test_drawing_leaves_global_random_state_alone():
    state = random.getstate()
    lab.training_problems(5, seed=0)
    lab.test_set("linear", 5)
    assert random.getstate() == state


def test_hunt_for_more_questions_than_exist_ends():
    with pytest.raises(ValueError, match=r"'gcd' gave \d+ distinct questions, expected 2000"):
        lab.test_set("gcd", 2000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lab.test_set("sudoku"), "unknown test set 'sudoku'"),
        (lambda: lab.development_set("add"), "unknown test set 'add'"),
        (lambda: lab.test_set("gcd", -1), "num_problems is -1"),
        (lambda: lab.training_problems(-1, 0), "num_problems is -1"),
        (lambda: lab.grade("", "four"), "answer is 'four'"),
    ],
)
def test_mistakes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("20/5=4;\\boxed{4}", "4", True),
        ("\\boxed{3};\\boxed{4}", "4", True),
        ("\\boxed{4};\\boxed{3}", "4", False),
        ("\\boxed{04}", "4", True),
        ("\\boxed{-4}", "-4", True),
        ("\\boxed{-4}", "4", False),
        ("\\boxed{4", "4", False),
        ("\\boxed{}", "4", False),
        ("\\boxed{4x}", "4", False),
        ("4", "4", False),
        ("", "4", False),
    ],
)
def test_grade(completion, answer, expected):
    assert lab.grade(completion, answer) is expected


def test_import_is_light():
    code = "import sys, saki.lab; assert not {'torch', 'transformers', 'tqdm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
