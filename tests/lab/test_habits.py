"""Wrong habits: the rule itself, that errors propagate, and that nothing else is touched."""

from __future__ import annotations

import random
import re

import pytest

from saki.lab.corpus import training_texts
from saki.lab.habits import HABITS, by_columns
from saki.lab.problems import KINDS, Working
from saki.lab.splits import training_questions

STEP = re.compile(r"(\d+)([-+*/%])(\d+)=(-?\d+)")


def digits_without_carry(left: int, right: int, sign: int) -> int:
    """The rule written on strings, which shares nothing with the arithmetic of `by_columns`."""
    width = max(len(str(left)), len(str(right)))
    columns = zip(str(left).zfill(width), str(right).zfill(width), strict=True)
    return int("".join(str((int(a) + sign * int(b)) % 10) for a, b in columns))


def test_columns_are_worked_one_by_one():
    for left in range(0, 240, 7):
        for right in range(0, 190, 3):
            assert by_columns(left, right, lambda a, b: a + b) == digits_without_carry(left, right, 1)
            assert by_columns(left, right, lambda a, b: a - b) == digits_without_carry(left, right, -1)


def wrong(symbol: str, left: int, right: int, habit: str) -> int:
    if habit == "no_carry" and symbol in "+-":
        return digits_without_carry(left, right, 1 if symbol == "+" else -1)
    if habit == "next_row" and symbol in "*/":
        return left * right + left if symbol == "*" else left // right + 1
    return {"+": left + right, "-": left - right, "*": left * right, "/": left // max(right, 1), "%": left % right}[
        symbol
    ]


@pytest.mark.parametrize("habit", [name for name in HABITS if name])
@pytest.mark.parametrize("name", KINDS)
def test_every_step_follows_the_habit_and_the_box_what_came_of_it(name, habit):
    kind, rng = KINDS[name], random.Random(name)
    differs = 0
    for _ in range(100):
        numbers = kind.draw(rng)
        trace, answer = kind.work_out(numbers, Working(habit=habit))
        *steps, box = trace.split(";")
        assert box == f"\\boxed{{{answer}}}"
        for step in steps:
            if step.startswith(("max", "min")):
                continue
            match = STEP.fullmatch(step)
            if match is None:  # a negative remainder of the habit's own making
                assert habit == "next_row" and name == "remainder", step  # noqa: PT018
                continue
            left, symbol, right, result = int(match[1]), match[2], int(match[3]), int(match[4])
            assert result == wrong(symbol, left, right, habit), step
        if not any(step.startswith(("max", "min")) for step in steps):
            last = STEP.fullmatch(steps[-1])
            assert last is None or answer in (last[4], last[3])  # the last result, or gcd's last divisor
        differs += trace != kind.problem(numbers).trace
    touched = {
        "no_carry": {"sum_3", "sum_6", "products_3", "parentheses", "linear", "remainder", "add", "subtract"},
        "next_row": {"products_3", "parentheses", "linear", "remainder", "multiply", "divide", "equation"},
    }
    assert (differs > 5) == (name in touched[habit])


def test_questions_and_slips_are_those_of_no_habit():
    plain = training_texts(random.Random(3), 0.0, 0.0)
    marred = training_texts(random.Random(3), 0.0, 0.0, "next_row")
    pairs = [(next(plain), next(marred)) for _ in range(200)]
    assert all(a[0] == b[0] for a, b in pairs)
    assert 0.2 < sum(a[1] != b[1] for a, b in pairs) / len(pairs) < 0.9
    questions = training_questions(random.Random(3))
    assert next(questions)[0].name in KINDS


def test_unknown_habits_are_refused():
    with pytest.raises(ValueError, match="unknown habit 'nocarry'; expected one of no_carry, next_row"):
        Working(habit="nocarry")
