import random
from dataclasses import replace

import pytest

from saki.planning import PRESETS, PlanRequest, load_shape, step_time, tokens_per_wave
from saki.planning.speed import completion_lengths, rounds

GENERATION, UPDATE, SYNC = 189.5, 24.9, 2.5  # seconds, Table 10
STUDENT_ONLY, EXACT_Q = 7760, 3276  # tokens/s, Table 3
UNFUSED_BISECTIONS = 296.0  # 16 waves of 16 accesses of an entry, and 40 around them


def paper(**changes):
    values = {
        "device": PRESETS["a800"],
        "layout": "split",
        "num_devices": 8,
        "prompt_length": 150,
        "mean_completion_length": GENERATION * EXACT_Q / 512,  # if both tables tell of one workload
        "rollout_batch_rows": 128,
        "gradient_checkpointing": True,
        "solver_accesses": UNFUSED_BISECTIONS,
    }
    return PlanRequest(load_shape("qwen3-1.7b"), load_shape("qwen3-4b"), **{**values, **changes})


def calibrated():
    """The paper's case, with the host's cost of a layer set by the paper's student-only rate."""
    low, high = 0.0, 5e-3
    for _ in range(40):
        middle = 0.5 * (low + high)
        time = step_time(paper(launch_s=middle))
        low, high = (middle, high) if time.tokens / time.student_only_s > STUDENT_ONLY else (low, middle)
    return paper(launch_s=high)


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.07, 0.5])
@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_tokens_per_wave_against_simulation(rate, block_size):
    draws, total = random.Random(0), 0
    for _ in range(20_000):
        total += next((j for j in range(1, block_size + 1) if draws.random() < rate), block_size)
    # A wave's count lies in [1, K], so its mean errs by under K / 2 / sqrt(n): five of those.
    assert abs(total / 20_000 - tokens_per_wave(rate, block_size)) < 5 * block_size / 2 / 20_000**0.5


def test_lengths_have_the_mean_and_the_cap():
    asked = paper()
    lengths = completion_lengths(asked)
    assert max(lengths) <= asked.max_completion_length
    assert sum(lengths) / len(lengths) == pytest.approx(asked.mean_length, rel=1e-6)


@pytest.mark.parametrize("slots", [1, 7, 128])
def test_rounds_cover_every_token_once(slots):
    asked = paper(rollout_batch_rows=slots)
    spans = rounds(asked)
    assert sum(tokens * rows for tokens, rows, _ in spans) == pytest.approx(sum(completion_lengths(asked)))
    assert max(rows for _, rows, _ in spans) == slots
    assert all(context >= asked.prompt_length for _, _, context in spans)


def test_split_of_table_10():
    """Shares of generation, update and sync among the three; the step's other 15.7 s are not modelled."""
    time = step_time(calibrated())
    modelled = GENERATION + UPDATE + SYNC
    assert time.exact_q_s / time.step_s == pytest.approx(GENERATION / modelled, abs=0.05)
    assert time.update_s / time.step_s == pytest.approx(UPDATE / modelled, abs=0.05)
    assert time.sync_s / time.step_s < 0.02


def test_ratio_of_table_3():
    """The calibrated prediction is 0.10 above the paper's 0.42: docs/planning.md says what that leaves unexplained."""
    ratio = step_time(calibrated()).ratio
    assert EXACT_Q / STUDENT_ONLY < ratio < EXACT_Q / STUDENT_ONLY + 0.12


def test_a_better_solver_and_fewer_corrections_raise_the_ratio():
    slow = calibrated()
    fast = replace(slow, solver_accesses=20.0)
    assert step_time(slow).ratio < step_time(fast).ratio < step_time(replace(fast, correction_rate=0.0)).ratio < 1
