"""The map of the paper stays complete and true: what it names exists, what it calls missing does not."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from saki.methods import method_names

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "paper_map.md"

NOT_YET = "not yet"
NO_CODE = "no code"

SPAN = re.compile(r"`([^`]+)`")
DOTTED = re.compile(r"saki(\.\w+)+")
TEST_PATH = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")
METHOD = re.compile(r"method `(\w+)`")


@dataclass(frozen=True)
class Row:
    """A row of the map: where it stands, what of the paper it is about, and its last two cells."""

    line: int
    paper: str
    code: str
    test: str

    def __str__(self):
        return f"paper_map.md:{self.line} ({self.paper})"


def read_rows():
    rows = []
    for number, line in enumerate(MAP.read_text(encoding="utf-8").splitlines(), start=1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] if line.startswith("|") else []
        if len(cells) == 4 and cells[0] != "Paper" and not cells[0].startswith("---"):
            rows.append(Row(number, cells[0], cells[2], cells[3]))
    return rows


ROWS = read_rows()


def split_cell(cell):
    """The part that must exist, and the part that must not."""
    present, _, missing = cell.partition(NOT_YET)
    return present, missing


def numbers(kind):
    """Numbers of one kind, such as ``Eq.``, in the first column; ``Eq. 5-7, 9`` counts 5, 6, 7 and 9."""
    found = []
    for row in ROWS:
        for listed in re.findall(rf"{re.escape(kind)} (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)", row.paper):
            for part in listed.split(", "):
                first, _, last = part.partition("-")
                found += range(int(first), int(last or first) + 1)
    return found


def exists(name):
    """Whether a dotted name is a module, or an attribute (a dataclass field included) of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module_name = ".".join(parts[:length])
        try:
            found = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # Only the absence of this module itself sends the search up; a missing dependency is an error.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            continue
        for attribute in parts[length:]:
            if attribute in getattr(found, "__dataclass_fields__", {}):
                return attribute == parts[-1]
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def named(part):
    """Everything that a part of a cell names, with whether it exists."""
    for span in SPAN.findall(part):
        test_path = TEST_PATH.fullmatch(span)
        if test_path:
            path, function = ROOT / test_path[1], test_path[2]
            there = path.is_file() and (not function or f"def {function}(" in path.read_text(encoding="utf-8"))
            yield span, there
        elif DOTTED.fullmatch(span):
            yield span, exists(span)
    for method in METHOD.findall(part):
        yield f"method {method}", method in method_names()


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
