"""Forced lengths change where rows end and nothing else; the split adds up."""

from __future__ import annotations

import time

import pytest
import torch

from saki.benchmarking.arms import EngineArm
from saki.benchmarking.engine import MeasuredEngine, forced_engine_type
from saki.rollout import verifier
from saki.types import RolloutRequest

LENGTHS = (1, 12, 5, 8, 2, 11, 7)


def generate(engine, work, behavior="bridge", block_size=4):
    request = RolloutRequest(
        seed=work.seed,
        max_completion_length=12,
        behavior=behavior,
        trust_region_radius=work.radius if behavior == "bridge" else 0.0,
        block_size=block_size,
        score_teacher=False,
    )
    return engine.generate(work.prompts, request)


@pytest.mark.parametrize("refill", [True, False])
@pytest.mark.parametrize("behavior", ["bridge", "student"])
def test_rows_end_at_their_forced_lengths_with_the_tokens_of_free_rows(pair, workload, behavior, refill):
    work = workload(lengths=LENGTHS, batch_size=3)
    decoders = pair.decoder("student"), pair.decoder("teacher")
    forced = generate(forced_engine_type(work.forced)(*decoders, (), max_batch_rows=3, refill=refill), work, behavior)
    free = generate(MeasuredEngine(*decoders, (), max_batch_rows=3), work, behavior)
    assert tuple(forced.lengths.tolist()) == LENGTHS
    assert set(forced.finish_reasons) == {"length"}
    for row, length in enumerate(LENGTHS):
        assert forced.completion_token_ids(row) == free.completion_token_ids(row)[:length]
        assert torch.equal(forced.correction_mask[row, :length], free.correction_mask[row, :length])
    if behavior == "bridge":
        assert bool(forced.correction_mask.any())


def test_refilled_slots_need_fewer_waves(pair, workload):
    work = workload(lengths=(12, 1, 1, 1, 1, 1, 1, 1), batch_size=2)
    waves = {}
    for refill in (True, False):
        engine = forced_engine_type(work.forced)(
            pair.decoder("student"), pair.decoder("teacher"), (), max_batch_rows=2, refill=refill
        )
        generate(engine, work, block_size=1)
        waves[refill] = engine.stats().waves
    assert waves == {True: 12, False: 12 + 3}


def test_split_tells_the_bridge_from_the_coupling(pair, workload, monkeypatch):
    work = workload(lengths=(8,) * 4)
    engine = MeasuredEngine(pair.decoder("student"), pair.decoder("teacher"), (), max_batch_rows=4)
    original, slept = verifier.solve_bridge, [0.0]

    def slow(*args, **kwargs):
        time.sleep(0.03)
        slept[0] += 0.03
        return original(*args, **kwargs)

    monkeypatch.setattr(verifier, "solve_bridge", slow)
    bridges = verifier.LazyBridges
    arm = EngineArm("exact_q", engine, "bridge", 4, "")
    arm.run(work)
    slept[0] = 0.0
    begin = time.perf_counter()
    with arm.split() as parts:
        arm.run(work)
    wall = time.perf_counter() - begin
    assert slept[0] > 0
    assert parts["bridge"] >= slept[0]
    assert 0 < parts["coupling"] < wall - slept[0]
    assert sum(parts.values()) <= wall
    assert verifier.LazyBridges is bridges
