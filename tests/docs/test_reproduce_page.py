"""The page on reproduction: its commands parse, its table names every configuration, its figures are the plan's."""

from __future__ import annotations

import importlib
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from saki.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reproduce.md").read_text()
LINES = [line.strip() for line in TEXT.splitlines() if re.match(r"    (saki |torchrun )", line)]


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    words = words[words.index("saki.cli.main") + 1 :] if words[0] == "torchrun" else words[1:]
    name = words.pop(0)
    assert name in COMMANDS
    if name == "teacher" and find_spec("trl") is None:
        pytest.skip("TRL is not installed")
    if name in ("train", "teacher"):  # bfloat16 autocast is refused without a GPU
        words += ["--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false"]
    if (name, words[0]) == ("eval", "tables"):
        name = f"eval_{words.pop(0)}"
    of_kind = [words.pop(0)] if name in ("probe", "bench") else []
    importlib.import_module(f"saki.cli.{name}").parser(*of_kind).parse(words)


def test_the_table_names_every_configuration():
    others = {"teacher_grpo", "evaluation", "data"}
    listed = re.findall(r"`configs/paper/([\w.]+)\.yaml`", TEXT)
    assert sorted(listed) == sorted(
        path.stem for path in (ROOT / "configs" / "paper").iterdir() if path.stem not in others
    )
    assert all((ROOT / path).is_file() for path in re.findall(r"configs/[\w./]+\.yaml", TEXT))


def test_links_lead_somewhere():
    assert all((ROOT / "docs" / target).exists() for target in re.findall(r"\]\(([^)#]+)\)", TEXT))


@pytest.mark.parametrize("size", ["1.7", "0.6"])
def test_the_predictions_are_those_of_the_plan(capsys, size):
    (line,) = [line for line in LINES if line.startswith("saki plan")]
    assert main(shlex.split(line.replace("_1.7b", f"_{size}b"))[1:]) == 0
    plan = capsys.readouterr().out
    peak, step = re.search(r"  peak +([\d.]+)", plan)[1], re.search(r"step ([\d.]+) s", plan)[1]
    column = {"1.7": 1, "0.6": 2}[size]
    rows = {
        line.split("|")[1].strip(): line.split("|")[1 + column].strip() for line in TEXT.splitlines() if "|" in line
    }
    assert rows["peak, of 80 GB"] == f"{float(peak):.1f} GB"
    assert rows["step, at a mean length of 1,212 tokens"] == f"{float(step):.0f} s"
    if size == "1.7":
        assert re.search(rf"predicted, 1.7B \| {float(step):.0f} s \| {200 * float(step) / 3600:.1f} h", TEXT)
