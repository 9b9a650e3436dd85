"""The map of the paper stays complete and true: what it names exists, what it calls missing does not."""

import re
from dataclasses import dataclass

import pytest

from tests.docs.names import DOTTED, NOT_YET, SPAN, TEST_PATH, exists, named, split_cell, table_rows

NO_CODE = "no code"


@dataclass(frozen=True)
class Row:
    """A row of the map: where it stands, what of the paper it is about, and its last two cells."""

    line: int
    paper: str
    code: str
    test: str

    def __str__(self):
        return f"paper_map.md:{self.line} ({self.paper})"


ROWS = [Row(line, cells[0], cells[2], cells[3]) for line, cells in table_rows("paper_map.md", 4)]


def numbers(kind):
    """Numbers of one kind, such as ``Eq.``, in the first column; ``Eq. 5-7, 9`` counts 5, 6, 7 and 9."""
    found = []
    for row in ROWS:
        for listed in re.findall(rf"{re.escape(kind)} (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)", row.paper):
            for part in listed.split(", "):
                first, _, last = part.partition("-")
                found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.parametrize(
    ("kind", "last"), [("Eq.", 84), ("Table", 10), ("Fig.", 4), ("Prop.", 3), ("Cor.", 1), ("Rem.", 1)]
)
def test_everything_numbered_is_covered_once(kind, last):
    assert sorted(numbers(kind)) == list(range(1, last + 1))


def test_every_appendix_is_covered():
    letters = set(re.findall(r"App\. ([A-Z])", " ".join(row.paper for row in ROWS)))
    assert letters == set("ABCDEFGHIJKL")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row_is_true(row):
    for cell in (row.code, row.test):
        present, missing = split_cell(cell)
        existing, planned = dict(named(present)), dict(named(missing))
        assert existing or NOT_YET in cell or NO_CODE in cell, f"{row} names nothing; write '{NOT_YET}' or '{NO_CODE}'"
        absent = [name for name, there in existing.items() if not there]
        assert not absent, f"{row} names {absent}, which does not exist"
        arrived = [name for name, there in planned.items() if there]
        assert not arrived, f"{row} calls {arrived} '{NOT_YET}', but it exists; move it before '{NOT_YET}'"


def test_code_and_tests_stand_in_their_columns():
    for row in ROWS:
        assert not any(TEST_PATH.fullmatch(span) for span in SPAN.findall(row.code)), row
        assert not any(DOTTED.fullmatch(span) for span in SPAN.findall(row.test)), row


def test_names_are_told_apart():
    assert exists("saki.functional.bridge.solve_bridge")
    assert exists("saki.functional.bridge.Bridge.tv")
    assert not exists("saki.functional.bridge.no_such_name")
    assert not exists("saki.no_such_module.solve_bridge")
