"""What a piece of work costs: child processes count, and what was held before does not."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from saki.benchmarking.meters import measure
from tests.benchmarking.conftest import CPU

BURN = """
import time
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print("done", flush=True)
input()
"""


def test_processor_time_of_running_and_of_ended_children_counts():
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        line, reading = measure(child.stdout.readline, CPU)
        assert line == "done\n"
        assert 0.2 < reading.cpu < 2
        child.communicate("\n")
    _, reading = measure(
        lambda: subprocess.run([sys.executable, "-c", BURN], input="\n", text=True, capture_output=True, check=True),
        CPU,
    )
    assert 0.25 < reading.cpu < 2


def test_waiting_costs_wall_time_alone():
    _, reading = measure(lambda: time.sleep(0.2), CPU)
    assert reading.wall >= 0.2
    assert reading.cpu < 0.15


def test_peak_is_what_the_work_takes_and_gives_back():
    size = 64 * 2**20

    def work():
        for _ in range(2):
            bytearray(size)[::4096]

    _, reading = measure(work, CPU)
    if reading.peak_bytes is None:
        pytest.skip("this system does not tell the peak")
    assert 0.9 * size < reading.peak_bytes < 2.2 * size
    _, reading = measure(lambda: None, CPU)
    assert reading.peak_bytes < 0.2 * size
