"""The GPU check runs through without a GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture
def check():
    spec = importlib.util.spec_from_file_location("gpu_check", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_through_with_tiny_shapes(check, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--tiny"])
    threads = torch.get_num_threads()
    try:
        assert check.main() == 0
    finally:
        torch.set_num_threads(threads)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    identity = [line for line in lines if line.get("check") == "identity"]
    assert [line["block_size"] for line in identity] == [1, 2, 4, 8]
    assert all(line["passed"] and line["corrections"] > 0 for line in identity)
    assert [line["vocab"] for line in lines if line.get("check") == "bridge"] == [4096]
    (rollout,) = [line for line in lines if line.get("bench") == "rollout"]
    assert set(rollout["arms"]) == {"student_only", "exact_q"}
    assert lines[-1]["passed"]


def test_a_wrong_bridge_fails_it(check, capsys, monkeypatch):
    result = check.bench_bridge((300,), repeats=1)
    result["vocab"]["300"]["max_kl_excess"] = 1e-9
    monkeypatch.setattr(check, "bench_bridge", lambda *args, **kwargs: result)
    assert not check.check_bridge(torch.device("cpu"), (300,), 1)


def test_it_prints_what_it_has_when_the_time_is_over(check, capsys):
    check.bench(torch.device("cpu"), tiny=True, deadline=0.0)
    assert json.loads(capsys.readouterr().out)["skipped"] == "no time is left"
