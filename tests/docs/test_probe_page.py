"""The commands of ``docs/probe.md`` parse, and its figures are those of the code."""

from __future__ import annotations

import importlib
import shlex

import pytest

from saki.analysis.probe_comparison import NUM_RESAMPLES
from saki.probe import MEASURES
from saki.probe.build import NUM_KEPT, WHOLE_BYTES, ProbeSettings
from tests.docs.names import ROOT

TEXT = (ROOT / "docs" / "probe.md").read_text()
LINES = [line.strip() for line in TEXT.splitlines() if line.startswith("    saki ")]


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    _, name, *words = shlex.split(line)
    command = importlib.import_module(f"saki.cli.{name}")
    if name == "probe":
        command.parser(words[0]).parse(words[1:])
    else:
        command.parser().parse([*words, "--output_dir", str(tmp_path), "--use_cpu", "true"])


def test_figures():
    assert len(LINES) == 5
    assert f"`--num_pairs` ({ProbeSettings().num_pairs:,})" in TEXT
    assert f"at radius {ProbeSettings().trust_region_radius:g} " in TEXT
    assert f"at most {WHOLE_BYTES // 2**20} MiB" in TEXT
    assert f"up to {WHOLE_BYTES // (4 * 2 * ProbeSettings().num_pairs):,} ids" in TEXT
    assert f"top {NUM_KEPT:,} tokens" in TEXT
    assert f"resample prompts, {NUM_RESAMPLES:,} times" in TEXT
    assert all(f"`{name}`" in TEXT for name in MEASURES)
