"""The page of studies names every key with its default, and the example files are valid studies."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from saki.config.study import StudyKeys, read_study

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "studies.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", TEXT, flags=re.M))


def test_every_key_is_there_with_its_default():
    assert list(ROWS) == [field.name for field in dataclasses.fields(StudyKeys)]
    for field in dataclasses.fields(StudyKeys):
        if isinstance(field.default, bool):
            assert ROWS[field.name] == str(field.default).lower()
        elif isinstance(field.default, int | str):
            assert ROWS[field.name].strip("`") == str(field.default)


@pytest.mark.parametrize("name", re.findall(r"`(examples/\w+\.yaml)`", TEXT))
def test_example_files_are_studies(name):
    assert len(read_study(ROOT / name).runs) > 8
