"""What README shows works: its commands parse, its Python runs, its files exist."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from saki.cli.main import COMMANDS
from saki.config.study import read_study

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.M | re.S)
LINES = [line for language, block in BLOCKS if not language for line in block.splitlines() if line.startswith("saki ")]


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    _, name, *words = shlex.split(line, comments=True)
    assert name in COMMANDS
    if name == "lab":
        return
    if name == "teacher":
        pytest.importorskip("trl")  # its settings are TRL's
    if name == "study":
        assert read_study(Path(words.pop(0))).runs
    if (name, words[0]) == ("eval", "tables"):
        name = f"eval_{words.pop(0)}"
    if name == "train":
        words += ["--output_dir", str(tmp_path), "--use_cpu", "true"]
    importlib.import_module(f"saki.cli.{name}").parser().parse(words)


@pytest.mark.parametrize("code", [block for language, block in BLOCKS if language == "python"])
def test_python_runs(code, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", TEXT))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_there_is_something_to_check():
    assert len(LINES) >= 6
    assert not re.search(r"@@\w+@@", TEXT)
