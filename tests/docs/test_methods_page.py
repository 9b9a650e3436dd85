"""The page of methods: every registered method has its paragraph, every option is named, the example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saki.methods import Method, get_method, method_names, method_options
from saki.objectives import SCHEDULES

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^##|\Z)", TEXT, flags=re.M | re.S))


def test_a_paragraph_for_every_method_and_no_other():
    assert set(SECTIONS) == set(method_names())
    assert all(len(text.split()) > 10 for text in SECTIONS.values())


@pytest.mark.parametrize("name", method_names())
def test_every_option_is_named_with_its_default(name):
    for option, default in method_options(name).items():
        assert f"`{option}`" in SECTIONS[name], option
        if isinstance(default, float | int):
            assert f"{default:g}" in SECTIONS[name], default


def test_every_schedule_is_described():
    assert all(f"- `{name}`:" in TEXT for name in SCHEDULES)


def test_the_example_makes_a_method():
    code = re.search(r"^```python\n(.*?)^```", TEXT, flags=re.M | re.S)
    names: dict = {}
    exec(compile(code[1], "methods.md", "exec"), names)
    assert isinstance(names["METHOD"], Method)
    assert names["METHOD"].branches[1] is get_method("saki").branches[1]
