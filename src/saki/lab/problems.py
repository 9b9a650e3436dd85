"""Arithmetic problems with worked traces: the kinds of question that the embedded pair is taught."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from saki.lab.habits import HABITS

END_OF_PROMPT = ":"
"""Closes every prompt, so that a prompt and its completion tokenise independently."""

_MAX_EUCLID_STEPS = 6  # a slipped remainder could otherwise prolong Euclid's algorithm past the completion cap
_BOXED = re.compile(r"\\boxed\{(-?\d+)\}")
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}
)


@dataclass(frozen=True)
class Problem:
    r"""One question with its clean solution.

    Attributes:
        prompt: The exact text that is tokenised, ready for completion, for example ``Solve 9x+15=4x+35:``.
        answer: The right answer, an integer in decimal notation.
        trace: The full clean completion, without the end-of-sequence token, for example
            ``9-4=5;35-15=20;20/5=4;\boxed{4}``.
        kind: Name of the problem kind, a key of `KINDS`.
    """

    prompt: str
    answer: str
    trace: str
    kind: str


class Working:
    """Performs arithmetic while writing each step down, with slips or a wrong habit if asked.

    A slip changes one digit of a step's result by 1 to 3. The wrong value is what the caller gets back, so
    it propagates through the steps that follow, as it does in a human's working.

    Args:
        rng: Source of slips; not used while ``slip_rate`` is 0.
        slip_rate: Probability that a step's result is wrong, in [0, 1].
        habit: A key of `saki.lab.habits.HABITS`: operations that are done by a wrong rule every time.

    Raises:
        ValueError: If slips have no source, or the habit is unknown.
    """

    def __init__(self, rng: random.Random | None = None, slip_rate: float = 0.0, habit: str = "") -> None:
        if slip_rate > 0 and rng is None:
            raise ValueError(f"slip_rate is {slip_rate} but rng is None; pass a random.Random to draw slips from")
        if habit not in HABITS:
            raise ValueError(f"unknown habit {habit!r}; expected one of {', '.join(filter(None, HABITS))}")
        self._operations = {**_OPERATIONS, **HABITS[habit]}
        self.steps: list[str] = []
        self._rng = rng
        self._slip_rate = slip_rate

    def calculate(self, left: int, symbol: str, right: int) -> int:
        """Write ``left symbol right = result`` down and return the result (division rounds down)."""
        result = self._slip(self._operations[symbol](left, right))
        self.steps.append(f"{left}{symbol}{right}={result}")
        return result

    def choose(self, word: str, left: int, right: int) -> int:
        """Write ``max(left,right) = result`` (or ``min``) down and return the result."""
        result = self._slip(max(left, right) if word == "max" else min(left, right))
        self.steps.append(f"{word}({left},{right})={result}")
        return result

    def _slip(self, value: int) -> int:
        if self._rng is None or self._rng.random() >= self._slip_rate:
            return value
        place = self._rng.randrange(len(str(abs(value))))
        shift = self._rng.choice((1, 1, 2, 3)) * 10**place
        lowered = value - shift
        # Never from a positive value to zero or below: a slipped value may be the divisor of a later step.
        return value + shift if lowered < 1 or self._rng.random() < 0.5 else lowered


@dataclass(frozen=True)
class Kind:
    """A kind of problem: how its numbers are drawn, how it is asked and how it is worked out.

    Attributes:
        name: Key in `KINDS`.
        draw: Draws the numbers of one question.
        ask: Renders the numbers as a question, without `END_OF_PROMPT`.
        solve: Works the numbers out, step by step, and returns the answer.
    """

    name: str
    draw: Callable[[random.Random], tuple[int, ...]]
    ask: Callable[[tuple[int, ...]], str]
    solve: Callable[[tuple[int, ...], Working], int]

    def prompt(self, numbers: tuple[int, ...]) -> str:
        """Return the prompt of a question, `END_OF_PROMPT` included."""
        return self.ask(numbers) + END_OF_PROMPT

    def work_out(self, numbers: tuple[int, ...], working: Working) -> tuple[str, str]:
        """Return the trace and the answer that ``working`` arrives at; with slips both may be wrong."""
        answer = self.solve(numbers, working)
        return ";".join([*working.steps, f"\\boxed{{{answer}}}"]), str(answer)

    def problem(self, numbers: tuple[int, ...]) -> Problem:
        """Return the question with its clean trace and right answer."""
        trace, answer = self.work_out(numbers, Working())
        return Problem(prompt=self.prompt(numbers), answer=answer, trace=trace, kind=self.name)


def grade(completion_text: str, answer: str) -> bool:
    r"""Tell whether a completion's last ``\boxed{...}`` integer equals the answer.

    Args:
        completion_text: Decoded completion; text after the box is ignored.
        answer: The right answer, an integer in decimal notation.

    Returns:
        True if a boxed integer exists and the last one equals ``answer`` as a number.

    Raises:
        ValueError: If ``answer`` is not an integer.

    Example:
        >>> grade("9-4=5;35-15=20;20/5=4;\\boxed{4}", "4")
        True
    """
    try:
        expected = int(answer)
    except ValueError as error:
        raise ValueError(f"answer is {answer!r}; expected an integer in decimal notation") from error
    boxed = _BOXED.findall(completion_text)
    return bool(boxed) and int(boxed[-1]) == expected


def _draw_between(*bounds: tuple[int, int]) -> Callable[[random.Random], tuple[int, ...]]:
    return lambda rng: tuple(rng.randint(low, high) for low, high in bounds)


def _draw_parentheses(rng: random.Random) -> tuple[int, ...]:
    subtrahend = rng.randint(1, 10)
    return rng.randint(1, 9), rng.randint(1, 9), subtrahend + rng.randint(2, 9), subtrahend


def _draw_linear(rng: random.Random) -> tuple[int, ...]:
    """Draw a, b, c, d of a x + b = c x + d with a > c, d > b and a positive whole solution, and the variable."""
    solution, difference = rng.randint(1, 9), rng.randint(1, 6)
    smaller, constant = rng.randint(1, 9), rng.randint(1, 20)
    return smaller + difference, constant, smaller, constant + difference * solution, rng.randrange(3)


def _draw_gcd(rng: random.Random) -> tuple[int, ...]:
    divisor = rng.randint(2, 12)
    left, right = rng.sample(range(1, 72 // divisor + 1), 2)
    return divisor * left, divisor * right


def _draw_difference(rng: random.Random) -> tuple[int, ...]:
    smaller = rng.randint(1, 49)
    return smaller + rng.randint(1, 49), smaller


def _draw_quotient(rng: random.Random) -> tuple[int, ...]:
    divisor = rng.randint(2, 9)
    return divisor * rng.randint(1, 19), divisor


def _draw_one_step_equation(rng: random.Random) -> tuple[int, ...]:
    factor = rng.randint(2, 9)
    return factor, factor * rng.randint(1, 12), rng.randrange(3)


def _ask_linear(numbers: tuple[int, ...]) -> str:
    left, left_constant, right, right_constant, variable = numbers
    name = "xyz"[variable]
    return f"Solve {left}{name}+{left_constant}={right}{name}+{right_constant}"


def _ask_products(numbers: tuple[int, ...]) -> str:
    return "Compute " + "+".join(f"{left}*{right}" for left, right in zip(numbers[::2], numbers[1::2], strict=True))


def _ask_sum(numbers: tuple[int, ...]) -> str:
    return "Compute " + "+".join(map(str, numbers))


def _solve_sum(numbers: tuple[int, ...], working: Working) -> int:
    total, *rest = numbers
    for term in rest:
        total = working.calculate(total, "+", term)
    return total


def _solve_products(numbers: tuple[int, ...], working: Working) -> int:
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return _solve_sum(tuple(working.calculate(left, "*", right) for left, right in pairs), working)


def _solve_parentheses(numbers: tuple[int, ...], working: Working) -> int:
    total = working.calculate(numbers[0], "+", numbers[1])
    return working.calculate(total, "*", working.calculate(numbers[2], "-", numbers[3]))


def _solve_linear(numbers: tuple[int, ...], working: Working) -> int:
    left, left_constant, right, right_constant, _ = numbers
    factor = working.calculate(left, "-", right)
    return working.calculate(working.calculate(right_constant, "-", left_constant), "/", factor)


def _solve_gcd(numbers: tuple[int, ...], working: Working) -> int:
    larger, smaller = numbers
    for _ in range(_MAX_EUCLID_STEPS):
        larger, smaller = smaller, working.calculate(larger, "%", smaller)
        if smaller == 0:
            break
    return larger


def _solve_remainder(numbers: tuple[int, ...], working: Working) -> int:
    dividend, divisor = numbers
    quotient = working.calculate(dividend, "/", divisor)
    return working.calculate(dividend, "-", working.calculate(quotient, "*", divisor))


def _solve_extremum(numbers: tuple[int, ...], working: Working) -> int:
    first, second, third, largest = numbers
    word = "max" if largest else "min"
    return working.choose(word, working.choose(word, first, second), third)


def _ask_extremum(numbers: tuple[int, ...]) -> str:
    first, second, third, largest = numbers
    return f"Compute {'max' if largest else 'min'}({first},{second},{third})"


_ALL_KINDS = (
    Kind("sum_3", _draw_between(*[(2, 29)] * 3), _ask_sum, _solve_sum),
    Kind("sum_6", _draw_between(*[(1, 19)] * 6), _ask_sum, _solve_sum),
    Kind("products_3", _draw_between(*[(2, 9)] * 6), _ask_products, _solve_products),
    Kind("parentheses", _draw_parentheses, lambda n: f"Compute ({n[0]}+{n[1]})*({n[2]}-{n[3]})", _solve_parentheses),
    Kind("linear", _draw_linear, _ask_linear, _solve_linear),
    Kind("gcd", _draw_gcd, lambda n: f"Compute gcd({n[0]},{n[1]})", _solve_gcd),
    Kind("remainder", _draw_between((10, 169), (2, 12)), lambda n: f"Compute {n[0]}%{n[1]}", _solve_remainder),
    Kind("add", _draw_between((1, 99), (1, 29)), _ask_sum, _solve_sum),
    Kind("subtract", _draw_difference, lambda n: f"Compute {n[0]}-{n[1]}", lambda n, w: w.calculate(n[0], "-", n[1])),
    Kind("multiply", _draw_between((2, 18), (2, 9)), _ask_products, _solve_products),
    Kind("divide", _draw_quotient, lambda n: f"Compute {n[0]}/{n[1]}", lambda n, w: w.calculate(n[0], "/", n[1])),
    Kind("extremum", _draw_between(*[(1, 49)] * 3, (0, 1)), _ask_extremum, _solve_extremum),
    Kind(
        "equation",
        _draw_one_step_equation,
        lambda n: f"Solve {n[0]}{'xyz'[n[2]]}={n[1]}",
        lambda n, w: w.calculate(n[1], "/", n[0]),
    ),
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _ALL_KINDS})
"""Every problem kind by name: the seven of `saki.lab.TEST_SETS`, then six easier ones."""
