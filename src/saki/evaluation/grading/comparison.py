r"""Judge one answer: structure here, single expressions by math-verify, plain numbers exactly.

What math-verify makes of some answers was measured, and is prevented before it sees them: ``1e-5`` is no e times 1
minus 5; two boxes are no set; ``\$36`` has no value; 2e-19 and 3e-19 are not the same number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, Literal

from saki.evaluation.grading.boxes import boxes
from saki.evaluation.grading.exact_numbers import exact_number, same_number
from saki.evaluation.grading.rewriting import has_bare_comma, has_e_notation, is_difference, plain_words, rewrite
from saki.evaluation.grading.structure import Group, Leaf, Structure, num_answers, parse_structure, split_top_level
from saki.evaluation.grading.units import strip_unit, without_unit_letter

Verdict = Literal["correct", "incorrect", "timeout", "unparsed"]
"""``unparsed``: there was no box, or nobody could read what was in it. ``timeout``: the deadline passed.

Both count as wrong, and both are counted.
"""

_EQUALS = r"(?<![<>!\\])=|\\equiv(?![a-zA-Z])"
_APPROXIMATELY = r"\\approx(?![a-zA-Z])|\\simeq(?![a-zA-Z])"
_NAME = re.compile(
    r"\\?[a-zA-Z]+(?:\s*_\s*(?:\{[^{}]*\}|\w))?(?:\^\{\\prime\}|')*(?:\s*\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\))?"
    r"|\\angle\s*[A-Z_{}\d\s]+"
)
_IN_BASE = re.compile(r"\(?\s*(\d+)\s*\)?\s*_\s*\{?\s*(?:\\text\s*\{\s*)?(\d+|[a-z]+)\s*\}?\s*\}?")
_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class UnparsedError(ValueError):
    """Math-verify cannot read an expression."""


def grade_completion(completion: str, gold: str, *, e_notation: bool = True, text_equality: bool = True) -> Verdict:
    r"""Judge a completion by its last balanced box.

    Where the gold answer has several parts and the last box alone is not right, all boxes together may be: "the
    roots are \boxed{1} and \boxed{2}". For a single gold answer earlier boxes never count.

    Args:
        completion: Text of the completion.
        gold: The right answer.
        e_notation: Whether e-notation is read as powers of ten.
        text_equality: Whether answers of equal text are right at once, and answers in words are compared as words.
            Off, everything must be shown by comparing what the expressions mean.

    Returns:
        The verdict; never ``"timeout"``, since the deadline is somebody else's.
    """
    found = boxes(completion)
    if not found:
        return "unparsed"
    verdict = compare_answers(found[-1], gold, e_notation=e_notation, text_equality=text_equality)
    if verdict == "correct" or len(set(found)) == 1:
        return verdict
    if any(num_answers(parse_structure(wanted)) > 1 for wanted in _gold_readings(gold, e_notation)):
        together = " , ".join(dict.fromkeys(found))
        if compare_answers(together, gold, e_notation=e_notation, text_equality=text_equality) == "correct":
            return "correct"
    return verdict


def compare_answers(answer: str, gold: str, *, e_notation: bool = True, text_equality: bool = True) -> Verdict:
    """Judge the content of a box.

    Args:
        answer: The answer.
        gold: The right answer.
        e_notation: See :func:`grade_completion`.
        text_equality: See :func:`grade_completion`.
    """
    golds, readings = _gold_readings(gold, e_notation), _answer_readings(answer, e_notation)
    if text_equality:
        if any(_bare(reading) == _bare(wanted) for reading in readings for wanted in golds):
            return "correct"
        words = plain_words(golds[0])
        if words is not None:
            if any(_words(reading) == words for reading in readings):
                return "correct"
            if not is_difference(golds[0]):
                return "incorrect"
    unparsed = False
    for wanted, reading in product(golds, readings):
        try:
            if _same(parse_structure(wanted), parse_structure(reading)):
                return "correct"
        except UnparsedError:
            unparsed = True
    return "unparsed" if unparsed else "incorrect"


def _gold_readings(gold: str, e_notation: bool) -> list[str]:
    """What the gold answer may mean: ``100,200`` is a number or a list, ``58,500`` is a number, ``58, 500`` a list."""
    readings = [rewrite(gold, e_notation=e_notation)]
    if (number := without_unit_letter(readings[0])) is not None:
        readings.append(number)
    if has_bare_comma(gold, in_threes=True):
        readings.append(rewrite(gold, e_notation=e_notation, thousands=False))
    return readings


def _answer_readings(answer: str, e_notation: bool) -> list[str]:
    """What an answer may mean. The gold answer decides, so both readings of every comma are safe to try."""
    readings = [rewrite(answer, e_notation=e_notation)]
    if e_notation and has_e_notation(answer):
        readings.append(rewrite(answer, e_notation=False))  # 2e-10 may also be Euler's number
    if has_bare_comma(answer):
        readings.append(rewrite(answer, e_notation=e_notation, thousands=False))
    return readings


def _bare(text: str) -> str:
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)  # 1 2 is not 12


def _words(text: str) -> str | None:
    words = plain_words(text)
    return words if words is not None else (text.lower() if text.isalpha() else None)


def _same(gold: Structure, answer: Structure) -> bool:
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return _same_leaf(gold.text, answer.text)
    if isinstance(gold, Group) and isinstance(answer, Group):
        return _same_group(gold, answer)
    if isinstance(gold, Group) and gold.kind == "list":
        return False  # one expression where several are wanted
    if isinstance(answer, Group) and answer.kind == "list":
        return False
    return _same_expression(_text(gold), _text(answer))


def _same_group(gold: Group, answer: Group) -> bool:
    if len(gold.items) != len(answer.items):
        if {gold.kind, answer.kind} == {"union"} or "list" not in (gold.kind, answer.kind):
            return _same_expression(_text(gold), _text(answer))
        return False
    if gold.kind == answer.kind == "tuple":
        # A vector may stand in square brackets, an interval keeps its own.
        if len(gold.items) == 2 and gold.brackets != answer.brackets:
            return False
        return _in_order(gold, answer)
    if gold.kind == answer.kind:
        return _in_any_order(gold, answer)
    if {gold.kind, answer.kind} == {"tuple", "list"}:
        enclosed = gold if gold.kind == "tuple" else answer
        return enclosed.brackets == "()" and _in_order(gold, answer)
    return False


def _in_order(gold: Group, answer: Group) -> bool:
    return all(_same(wanted, given) for wanted, given in zip(gold.items, answer.items, strict=True))


def _in_any_order(gold: Group, answer: Group) -> bool:
    """Each gold part takes one equal part of the answer; equality is transitive, so the first one will do."""
    left = list(answer.items)
    failure: UnparsedError | None = None
    for wanted in gold.items:
        for index, given in enumerate(left):
            try:
                equal = _same(wanted, given)
            except UnparsedError as error:
                failure, equal = error, False
            if equal:
                del left[index]
                break
        else:
            if failure is not None:
                raise failure
            return False
    return True


def _text(structure: Structure) -> str:
    if isinstance(structure, Leaf):
        return structure.text
    inner = [_text(item) for item in structure.items]
    if structure.kind == "union":
        return r" \cup ".join(inner)
    return (structure.brackets or "  ")[0] + ", ".join(inner) + (structure.brackets or "  ")[1]


def _same_leaf(gold: str, answer: str) -> bool:
    failure: UnparsedError | None = None
    for wanted, given in _sides(gold, answer):
        try:
            if _same_expression(wanted, given):
                return True
        except UnparsedError as error:
            failure = error
    if failure is not None:
        raise failure
    return False


def _sides(gold: str, answer: str) -> Iterator[tuple[str, str]]:
    """What to compare: right sides where a name stands on the left of one or both, else the whole."""
    given = split_top_level(answer, _APPROXIMATELY)
    if len(given) > 1 and _NAME.fullmatch(given[0]):
        given = [f"{given[0]} = {given[1]}"]
    answer = given[0] if given else answer
    gold_parts, answer_parts = split_top_level(gold, _EQUALS), split_top_level(answer, _EQUALS)
    gold_named = len(gold_parts) > 1 and _NAME.fullmatch(gold_parts[0]) is not None
    answer_named = len(answer_parts) > 1 and _NAME.fullmatch(answer_parts[0]) is not None
    if gold_named and answer_named:
        if _bare(gold_parts[0]) == _bare(answer_parts[0]):
            yield gold_parts[-1], answer_parts[-1]
    elif answer_named and len(gold_parts) == 1:
        yield gold, answer_parts[-1]
    elif gold_named and len(answer_parts) == 1:
        yield gold_parts[-1], answer
    elif len(answer_parts) > 1 and len(gold_parts) == 1:
        yield gold, answer_parts[-1]  # a chain such as 1/2 + 1/2 = 1
        return
    if len(gold_parts) == len(answer_parts) == 1 or not (len(gold_parts) == 1 or len(answer_parts) == 1):
        yield gold, answer


def _same_expression(gold: str, answer: str) -> bool:
    gold_base, answer_base = _IN_BASE.fullmatch(gold), _IN_BASE.fullmatch(answer)
    if gold_base and answer_base:  # math-verify overlooks the base
        return gold_base[1] == answer_base[1] and _base(gold_base[2]) == _base(answer_base[2])
    if gold_base or answer_base:
        return (gold_base or [gold, gold])[1] == (answer_base or [answer, answer])[1]
    wanted, given = exact_number(gold), exact_number(answer)
    if wanted is not None and given is not None:
        return same_number(wanted, given)
    from math_verify import verify

    return bool(
        verify(
            _parsed(gold),
            _parsed(answer),
            allow_set_relation_comp=True,
            timeout_seconds=None,  # its own clock works in a main thread only, and not inside one long operation
            raise_on_error=False,
        )
    )


def _base(word: str) -> str:
    return str(_BASES.index(word) + 2) if word in _BASES else word


@lru_cache(maxsize=256)
def _parsed(text: str) -> list[Any]:
    """An expression as math-verify reads it.

    Raises:
        UnparsedError: If it cannot.
    """
    from math_verify import LatexExtractionConfig, parse

    config = LatexExtractionConfig()
    found = parse(
        f"${strip_unit(text)}$",
        extraction_config=[replace(config, normalization_config=replace(config.normalization_config, units=False))],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=False,
    )
    if not found:
        raise UnparsedError(f"cannot read {text!r}")
    return [_with_imaginary_unit(each) for each in found]


def _with_imaginary_unit(expression: Any) -> Any:
    """The parser makes of i one symbol or another, by what stands around it; all of them are the imaginary unit."""
    from sympy import Basic, I
    from sympy.core.relational import Relational

    if not isinstance(expression, Basic) or expression.has(Relational):
        return expression
    return expression.xreplace({symbol: I for symbol in expression.free_symbols if str(symbol) == "i"})
