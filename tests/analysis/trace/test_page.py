"""The page as text: whole, closed in itself, and with nothing in it that a token could have written."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from saki.analysis.trace import trace_link
from saki.analysis.trace.page import SCRIPTS, theme_rules
from tests.analysis.trace import made_rollouts as made

ASSETS = files("saki.analysis.trace") / "assets"


class Page(HTMLParser):
    """Elements with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def html(trace_file):
    return trace_file.read_text(encoding="utf-8")


def test_hostile_text_stands_escaped_in_the_titles_only(html):
    page = Page(html)
    assert made.HOSTILE not in html
    assert "onerror=&quot;" in html  # the title and the heading
    assert [tag for tag, _ in page.elements if tag in ("img", "link", "iframe", "object", "a")] == []
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not [name for _, attributes in page.elements for name in attributes if name in ("src", "href", "style")]


def test_the_policy_names_this_script_and_this_style_and_nothing_else(html):
    page = Page(html)
    policy = next(attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for kind in ("script", "style"):
        (text,) = re.findall(f"<{kind}>(.*?)</{kind}>", html, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"


def test_every_part_of_the_script_is_in_the_page_and_small(html):
    for name in SCRIPTS:
        text = (ASSETS / name).read_text(encoding="utf-8")
        assert text in html
        assert text.count("\n") <= 400
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|https?:", text)
    assert {each.name for each in ASSETS.iterdir()} == {*SCRIPTS, "trace.html", "trace.css"}


def test_both_themes_have_every_colour():
    light, system_dark, chosen_dark = theme_rules().split("\n")
    names = set(re.findall(r"--\w+", light))
    assert names == set(re.findall(r"--\w+", system_dark)) == set(re.findall(r"--\w+", chosen_dark))
    assert len(names) >= 10


def test_links_carry_any_file_name():
    assert trace_link("a b/#1.parquet", 3) == "trace.html#a%20b%2F%231.parquet/3"
