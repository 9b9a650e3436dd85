"""What a run shows: a bar on a terminal, a line a log elsewhere, and one JSON line a log in its file."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace

import pytest

from saki.training.callbacks import ConsoleCallback, MetricsFileCallback

LOGS = {
    "loss": 0.5,
    "rollout/kl_to_teacher": 0.25,
    "rollout/correction_rate": 0.0123,
    "rollout/mean_length": 31.4,
    "time/tokens_per_s": 1234.0,
    "grad_norm": 3.0,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def state_at(step, **values):
    return SimpleNamespace(**{"global_step": step, "max_steps": 200, "is_world_process_zero": True, **values})


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("saki.training.callbacks.time.perf_counter", lambda: now.seconds)
    return now


def steps(callback, clock, *, first, last, seconds):
    """A run of some steps, each of as many seconds, logged one by one."""
    callback.on_train_begin(None, state_at(first), None)
    for step in range(first + 1, last + 1):
        clock.seconds += seconds
        callback.on_step_end(None, state_at(step), None)
        callback.on_log(None, state_at(step), None, logs=LOGS)


def test_a_pipe_gets_one_line_a_log(clock):
    out = io.StringIO()
    callback = ConsoleCallback(stream=out)
    steps(callback, clock, first=0, last=2, seconds=2.5)
    callback.on_log(None, state_at(2), None, logs={"train_runtime": 5.0, "train_loss": 0.5})
    callback.on_log(None, state_at(2), None, logs={"eval/kl_to_teacher": 0.25, "eval/seconds": 1.5})
    callback.close()
    figures = "loss 0.500  KL 0.250  corrected 1.23%  length 31  tokens/s 1,234"
    assert out.getvalue().splitlines() == [
        f"step   1/200  2.50 s/step  left 08:17  {figures}",  # 199 steps of 2.5 s
        f"step   2/200  2.50 s/step  left 08:15  {figures}",
        "step 2: eval/kl_to_teacher 0.25, eval/seconds 1.5",
    ]


def test_a_resumed_run_has_the_rate_of_its_own_steps(clock):
    out = io.StringIO()
    steps(ConsoleCallback(stream=out), clock, first=100, last=104, seconds=0.5)
    assert out.getvalue().splitlines()[-1].startswith("step 104/200  2.00 steps/s  left 00:48  loss")


def test_a_terminal_gets_one_bar_with_step_rate_and_time_left():
    out = Terminal()
    callback = ConsoleCallback(stream=out)
    callback.on_train_begin(None, state_at(0), None)
    for step in (1, 2):
        callback.on_log(None, state_at(step), None, logs=LOGS)
        callback.on_step_end(None, state_at(step), None)
    callback.on_log(None, state_at(2), None, logs={"eval/kl_to_teacher": 0.25})
    callback.on_train_end(None, state_at(2), None)
    last = out.getvalue().split("\r")[-1]
    assert re.search(r"2/200 \[\d\d:\d\d<[\d:?]+, +[\d.?]+ ?(steps/s|s/ ?steps)", last)
    for figure in ("loss=0.500", "KL=0.250", "corrected=1.23%", "length=31", "tokens/s=1,234"):
        assert figure in last
    assert "step 2: eval/kl_to_teacher 0.25" in out.getvalue()
    assert callback.bar is None


def test_other_ranks_are_silent(clock):
    out = io.StringIO()
    callback = ConsoleCallback(stream=out)
    callback.on_train_begin(None, state_at(0, is_world_process_zero=False), None)
    callback.on_log(None, state_at(1, is_world_process_zero=False), None, logs=LOGS)
    assert out.getvalue() == ""


def test_the_metrics_file_has_a_line_a_log(tmp_path):
    callback = MetricsFileCallback(tmp_path / "metrics.jsonl")
    callback.on_log(None, state_at(1), None, logs=LOGS)
    callback.on_log(None, state_at(2, is_world_process_zero=False), None, logs=LOGS)
    callback.on_log(None, state_at(2), None, logs={"train_runtime": 5.0})
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [{"step": 1, **LOGS}]
