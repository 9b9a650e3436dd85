from dataclasses import replace

import pytest

from saki.planning import PRESETS, PlanRequest, device_memory, load_shape, make_plan
from saki.planning.memory import kv_bytes


def request(**changes):
    values = {"student": load_shape("qwen3-1.7b"), "teacher": load_shape("qwen3-4b"), "device": PRESETS["h100"]}
    return PlanRequest(**{**values, "gradient_checkpointing": True, **changes})


def item(memory, name):
    return next(item.num_bytes for item in memory.items if item.name == name)


def test_guided_generation_needs_the_teacher_on_top():
    """Eq. 79-81: M_q - M_OPD = W_T + KV_T."""
    asked = request(train=False, rollout_batch_rows=3)
    (memory,) = device_memory(asked)
    slots = 3 * (asked.prompt_length + asked.max_completion_length + asked.block_size)
    teacher = asked.teacher
    extra = item(memory, "teacher weights") + item(memory, "teacher KV")
    assert extra == 2 * teacher.num_parameters + slots * 2 * 36 * 8 * 128 * 2
    assert kv_bytes(asked)[0] == slots * 2 * 28 * 8 * 128 * 2


def test_phases_do_not_add_up_and_layouts_share_the_items():
    together = device_memory(request())[0]
    assert together.peak == together.of("resident") + max(together.of("rollout"), together.of("update"))
    engine, actor = device_memory(request(layout="split", num_devices=2, prompts_per_step=64))
    assert {i.name for i in engine.items} | {i.name for i in actor.items} == {i.name for i in together.items}
    assert max(engine.peak, actor.peak) < together.peak


def test_what_fits_gets_no_advice():
    plan = make_plan(request(device=replace(PRESETS["h100"], memory_bytes=1e13)))
    assert plan.fits
    assert plan.remedied
    assert plan.changes == {}


def apply(asked, changes):
    return replace(asked, **changes)


@pytest.mark.parametrize("memory", [50e9, 80e9, 141e9])
def test_advice_makes_it_fit_and_leaves_nothing_needless(memory):
    asked = request(device=replace(PRESETS["h100"], memory_bytes=memory), gradient_checkpointing=False)
    plan = make_plan(asked)
    assert not plan.fits
    assert plan.remedied
    assert make_plan(apply(asked, plan.changes)).fits
    assert "max_completion_length" not in plan.changes
    for name in set(plan.changes) - {"num_devices", "layout"}:
        others = {key: value for key, value in plan.changes.items() if key != name}
        assert not make_plan(apply(asked, others)).fits, name


def test_fewer_rows_come_before_anything_else():
    small = request(rollout_batch_rows=4, per_device_train_batch_size=1)
    capacity = device_memory(small)[0].peak
    plan = make_plan(replace(small, rollout_batch_rows=64, device=replace(small.device, memory_bytes=capacity)))
    assert plan.changes == {"rollout_batch_rows": 4}


def test_what_no_option_mends_is_said():
    plan = make_plan(request(device=replace(PRESETS["h100"], memory_bytes=2e9)))
    assert not plan.remedied


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correction_rate": 0.11}, "bounds it by sqrt"),
        ({"mean_completion_length": 8000.0}, "above max_completion_length"),
        ({"layout": "split"}, "at least 2 devices"),
        ({"layout": "split", "num_devices": 2, "engine_devices": 2}, "leaves none"),
        ({"teacher": load_shape("smollm2-135m")}, "share a tokenizer"),
        ({"teacher_dtype": "int4"}, "teacher_dtype must be one of"),
    ],
)
def test_mistakes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        request(**change)
