"""The page of lessons stays complete and true: every kind of fault has a row, and every test that it names exists."""

import pytest

from tests.docs.names import NOT_YET, ROOT, SPAN, TEST_PATH, named, split_cell, table_rows

KINDS = (
    "Vocabulary",
    "Stopping",
    "Templates",
    "Normalisation",
    "Numerics",
    "Objective",
    "Temperature, top-p",
    "Weight sync",
    "Ragged batches",
    "Memory",
    "Resume",
    "Configuration",
    "Grading",
    "Long runs",
)
ROWS = {cells[0]: cells[1:] for _, cells in table_rows("lessons.md", 4)}


def test_every_kind_has_one_row():
    assert [cells[0] for _, cells in table_rows("lessons.md", 4)] == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_row_is_true(kind):
    fault, answer, tests = ROWS[kind]
    present, missing = split_cell(tests)
    listed = SPAN.findall(present)
    assert fault
    assert answer
    assert listed, f"{kind} names no test"
    for span in listed:
        found = TEST_PATH.fullmatch(span)
        assert found, f"{kind}: {span!r} is no path of a test"
        assert found[2], f"{kind}: {span!r} names a file, but no test in it"
    absent = [name for name, there in named(present) if not there]
    assert not absent, f"{kind} names {absent}, which does not exist"
    arrived = [name for name, there in named(missing) if there]
    assert not arrived, f"{kind} calls {arrived} '{NOT_YET}', but it exists"
    assert NOT_YET not in tests


def test_names_of_tests_are_told_apart():
    there, gone = "`tests/docs/test_lessons.py::test_row_is_true`", "`tests/docs/test_lessons.py::test_row_is`"
    assert [found for _, found in named(f"{there} {gone}")] == [True, False]
    assert (ROOT / "docs" / "lessons.md").is_file()
