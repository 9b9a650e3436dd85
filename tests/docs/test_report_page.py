"""The commands of ``docs/report.md`` parse, and its figures are those of the code."""

from __future__ import annotations

import importlib
import re
import shlex

import pytest

from saki.analysis.publication import DPI, FORMATS
from saki.analysis.rollout_files import NUM_FILES
from saki.analysis.side_by_side import MOST_LINES
from saki.cli.figures import MOST_ARMS
from saki.cli.run_pages import MAX_COMPLETIONS
from saki.training.callbacks import ConsoleCallback
from tests.docs.names import ROOT

TEXT = (ROOT / "docs" / "report.md").read_text()
LINES = [line.strip() for line in TEXT.splitlines() if line.startswith("    saki ")]


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    _, name, *words = shlex.split(line)
    if name == "train":
        words = [word for word in words if word not in ("--report_to", "wandb")]  # which need not be installed
        words += ["--output_dir", str(tmp_path), "--use_cpu", "true"]
    importlib.import_module(f"saki.cli.{name}").parser().parse(words)


def test_figures():
    assert len(LINES) == 8
    assert f"at most {NUM_FILES} steps, evenly spaced" in TEXT
    assert f"at most {MAX_COMPLETIONS} completions of the same steps" in TEXT
    assert MOST_ARMS == MOST_LINES
    assert f"first {MOST_LINES} runs or arms" in TEXT
    assert f"SVG, PDF and PNG ({DPI} dpi)" in TEXT
    assert FORMATS == ("svg", "pdf", "png")
    shown = re.search(r"^step 3/6 .*$", TEXT, flags=re.M)
    assert all(f" {label} " in shown[0] for _, label, _ in ConsoleCallback.SHOWN)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", TEXT))
def test_links_lead_somewhere(target):
    assert (ROOT / "docs" / target).exists()
