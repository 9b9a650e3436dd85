"""Slots: freed ones are refilled, prompts run once, the budget holds, and a wave reads nothing back on a device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from saki.functional import bridge, devices
from saki.models import tiny_qwen3
from saki.rollout import HFDecoder, ResidentEngine
from saki.rollout.unit import WorkUnit
from saki.types import Prompt, RolloutRequest

VOCAB, STOPS = 23, (1, 2)


def engine(**options):
    pair = (tiny_qwen3(VOCAB, seed=seed, dtype=torch.float64, scale=0.3) for seed in (1, 2))
    return ResidentEngine(*(HFDecoder(model, VOCAB) for model in pair), STOPS, **options)


def request(**changes):
    values = {"seed": 1, "max_completion_length": 12, "num_generations": 8, "trust_region_radius": 0.2}
    return RolloutRequest(**(values | changes))


PROMPTS = [Prompt(7, (3, 4, 5, 6, 7)), Prompt(9, (6,)), Prompt(11, (3, 8, 9, 10, 11, 12, 13))]


@pytest.mark.parametrize("radius", [0.2, 0.0])
def test_refilling_changes_no_token_and_saves_rounds(radius):
    asked = request(trust_region_radius=radius)
    groups, slots = engine(max_batch_rows=6, refill=False), engine(max_batch_rows=6)
    a, b = groups.generate(PROMPTS, asked), slots.generate(PROMPTS, asked)
    assert torch.equal(a.completion_ids, b.completion_ids)
    assert torch.equal(a.correction_mask, b.correction_mask)
    assert len(set(a.lengths.tolist())) > 4
    assert slots.stats().student_forwards < groups.stats().student_forwards


def test_a_prompt_runs_once_for_all_its_samples():
    work = {}
    for samples in (1, 8):
        one = engine(max_batch_rows=4)
        one.generate(PROMPTS, request(num_generations=samples))
        work[samples] = one.stats().prefill_positions
    assert work[8] == work[1]  # prompts of the three fit one prefill
    assert work[1] == 2 * 3 * 6  # two models, three prompts, the longest but its last token


def test_many_prompts_are_run_in_groups_as_slots_come_free():
    prompts = [Prompt(key, tuple(3 + (key + i) % 15 for i in range(1 + key % 6))) for key in range(30)]
    small, whole = engine(max_batch_rows=4, prefill_chunk=2), engine(max_batch_rows=64)
    asked = request(num_generations=2)
    a, b = small.generate(prompts, asked), whole.generate(prompts, asked)
    assert torch.equal(a.completion_ids, b.completion_ids)
    assert torch.allclose(a.student_logprobs, b.student_logprobs, atol=1e-9, equal_nan=True)


def test_the_budget_bounds_the_slabs(monkeypatch):
    seen = []
    monkeypatch.setattr(WorkUnit, "run", watched(WorkUnit.run, seen))
    free = engine(max_batch_rows=24)
    reference = free.generate(PROMPTS, request())
    budget = int(0.4 * seen[-1])
    tight = engine(max_batch_rows=24, kv_budget_bytes=budget)
    assert torch.equal(tight.generate(PROMPTS, request()).completion_ids, reference.completion_ids)
    assert 0.2 * seen[0] < seen[1] <= budget
    with pytest.raises(ValueError, match="kv_budget_bytes is 10"):
        engine(kv_budget_bytes=10).generate(PROMPTS, request())


def watched(run, seen):
    def wrapped(unit, on_finished):
        peak = 0

        def watch(count):
            nonlocal peak
            peak = max(peak, sum(cache.num_bytes for cache in unit.caches))
            on_finished(count)

        batch = run(unit, watch)
        seen.append(peak)
        return batch

    return wrapped


class ReadBacks(TorchDispatchMode):
    """Names of operations for which a host would wait for its device."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "item")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.WAITING:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("behavior", ["bridge", "skd"])
def test_a_wave_reads_nothing_back_on_a_device(monkeypatch, behavior):
    """The code for accelerators, run here: same tokens, no wait within a wave but the solver's, which is kept off."""
    options = {"behavior": behavior, "top_k": 3 if behavior == "skd" else None}
    reference = engine().generate(PROMPTS, request(**options))
    monkeypatch.setattr(devices, "HOST_DEVICES", set())
    monkeypatch.setattr(bridge, "LOOK_EVERY", 100)
    seen = []
    wave = WorkUnit._wave

    def watched_wave(unit, teacher):
        commit = unit._commit

        def outside(*args, **kwargs):  # recording ends with the one read-back of a wave
            watch.__exit__(None, None, None)
            commit(*args, **kwargs)

        unit._commit = outside
        watch = ReadBacks()
        watch.__enter__()
        wave(unit, teacher)
        unit._commit = commit
        seen.append(watch.seen)

    monkeypatch.setattr(WorkUnit, "_wave", watched_wave)
    batch = engine().generate(PROMPTS, request(**options))
    assert len(seen) > 3
    assert all(not names for names in seen), seen[0]
    assert torch.equal(batch.completion_ids, reference.completion_ids)
    assert torch.equal(batch.correction_mask, reference.correction_mask)
    assert torch.allclose(batch.beta, reference.beta, atol=1e-9, equal_nan=True)


def test_screening_leaves_discarded_positions_unsolved():
    one = engine()
    batch = one.generate(PROMPTS, request(block_size=8))
    stats = one.stats()
    proposed = 8 * stats.waves * 24
    assert batch.num_valid_tokens <= stats.solved_bridges < proposed


def test_engines_do_not_touch_the_models_they_copy():
    model = tiny_qwen3(VOCAB, seed=1, dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())
    ResidentEngine(HFDecoder(copy.deepcopy(model), VOCAB), None, STOPS).generate(
        PROMPTS, request(behavior="student", trust_region_radius=0.0, score_teacher=False)
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
