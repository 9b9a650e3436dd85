"""Workers: order, deadlines, replacement, and what is told when they cannot work."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from saki.evaluation import grading
from saki.evaluation.grading import GradingPool, GradingUnavailableError, check_math_verify
from saki.evaluation.grading import pool as pool_module

STUCK = r"\boxed{9^{9^{9^{9}}}}"


@pytest.fixture
def pool():
    pytest.importorskip("math_verify")
    with GradingPool(2, deadline=2.0) as pool:
        yield pool


def processes(pool):
    return [worker.process.pid for worker in pool._idle]


def test_verdicts_come_in_order_and_workers_stay(pool):
    assert pool.grade([rf"\boxed{{{i}}}" for i in range(20)], ["7"] * 20) == [
        "correct" if i == 7 else "incorrect" for i in range(20)
    ]
    first = processes(pool)
    assert pool.grade([r"\boxed{x+1}", "nothing"], ["1+x", "1"]) == ["correct", "unparsed"]
    assert set(processes(pool)) == set(first)


def test_a_stuck_answer_costs_its_deadline_and_nothing_else(pool):
    pool.grade([r"\boxed{1}"] * 2, ["1"] * 2)  # start the workers
    begin = time.perf_counter()
    verdicts = pool.grade([r"\boxed{1}", STUCK, *[r"\boxed{1}"] * 20], ["1", "3", *["1"] * 20])
    assert verdicts == ["correct", "timeout", *["correct"] * 20]
    assert time.perf_counter() - begin < 2.0 + 3.0
    assert pool.grade([r"\boxed{1}"] * 4, ["1"] * 4) == ["correct"] * 4  # a new worker stands in


def test_a_worker_that_died_is_replaced(pool):
    pool.grade([r"\boxed{1}"] * 2, ["1"] * 2)
    for pid in processes(pool):
        os.kill(pid, 9)
    time.sleep(0.1)
    verdicts = pool.grade([r"\boxed{1}"] * 8, ["1"] * 8)
    assert verdicts.count("timeout") <= 2
    assert pool.grade([r"\boxed{1}"] * 8, ["1"] * 8) == ["correct"] * 8


def test_a_stuck_worker_ends_itself_though_nobody_kills_it():
    pytest.importorskip("math_verify")
    worker = pool_module._Worker()
    worker.process.stdin.write((json.dumps({"completion": STUCK, "gold": "3", "deadline": 0.3}) + "\n").encode())
    worker.process.stdin.flush()
    assert worker.process.wait(timeout=10) == -signal.SIGALRM
    worker.kill()


def test_workers_end_with_the_pool():
    pytest.importorskip("math_verify")
    with GradingPool(1) as pool:
        pool.grade([r"\boxed{1}"], ["1"])
        (worker,) = pool._idle
    assert worker.process.poll() is not None


def test_a_missing_extra_is_one_sentence(monkeypatch):
    monkeypatch.setattr(pool_module, "find_spec", lambda name: None)
    with pytest.raises(GradingUnavailableError, match=r"pip install 'saki\[eval\]'"):
        check_math_verify()
    with pytest.raises(GradingUnavailableError):
        GradingPool()


def test_arguments_are_checked(monkeypatch):
    monkeypatch.setattr(pool_module, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match="num_workers must be at least 1"):
        GradingPool(0)
    with pytest.raises(ValueError, match="an answer for each completion"):
        GradingPool(1).grade(["a"], [])
    assert grading.DEADLINE_SECONDS > 0


@pytest.mark.slow
def test_fifteen_hundred_answers_in_a_minute():
    pytest.importorskip("math_verify")
    golds = [rf"\frac{{{i}}}{{{i % 7 + 2}}}+\sqrt{{{i % 11 + 2}}}" for i in range(1500)]
    texts = [rf"\boxed{{{golds[i if i % 2 else (i + 1) % 1500]}}}" for i in range(1500)]
    texts[700] = STUCK
    begin = time.perf_counter()
    with GradingPool(2) as pool:
        verdicts = pool.grade(texts, golds, text_equality=False)
    assert time.perf_counter() - begin < 60
    assert verdicts[700] == "timeout"
    assert verdicts.count("timeout") == 1
    assert verdicts.count("correct") == 750
