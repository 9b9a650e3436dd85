"""A replica's process is killed in the middle of a rollout: the one test of Ray that every change runs."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("ray")

from saki.rollout import ResidentEngine
from saki.types import Prompt
from tests.rollout.contract import STOPS, assert_same, request
from tests.rollout.pool.on_ray import pool_of, wait_for_forwards
from tests.rollout.served import table_decoder

PROMPTS = [Prompt(key, (3 + key,), (0, 1)) for key in range(4)]
STUDENT = {"vocab_size": 300, "seed": 1}  # two stop tokens of 300, so rows are long
TEACHER = {**STUDENT, "seed": 2}


def test_a_replica_killed_in_the_middle_of_a_rollout_changes_no_bit(caplog):
    asked = request(max_completion_length=200)
    pool = pool_of(1, STUDENT, TEACHER, "table_decoder", unit_rows=8, max_failures=1)
    try:
        first = pool._fleet.seats[0].handle
        start = first.start
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, first._place[1]) == mine  # Ray's own choice would wait for idle cores

        def disturbed(call, *arguments):
            start(call, *arguments)
            wait_for_forwards(first, 10)
            os.kill(first._place[1], signal.SIGKILL)

        first.start = disturbed
        batch = pool.generate(PROMPTS, asked)
        assert pool.stats().failures == 1
        assert "its process is gone" in pool.stats().causes[0]
        assert "unit 1 of 1 is done again" in caplog.text
    finally:
        pool.close()
    resident = ResidentEngine(table_decoder(**STUDENT), table_decoder(**TEACHER), STOPS, max_batch_rows=8)
    assert_same(batch, resident.generate(PROMPTS, asked), exact=True)
