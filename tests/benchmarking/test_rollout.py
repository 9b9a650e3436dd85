"""Arms do the same work, alternate, and are told apart in what they report."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext

import pytest

from saki.benchmarking import bench_rollout, open_arms, rollout_table, waves_of_rows
from saki.benchmarking.arms import ARM_NAMES, ArmRun, AssistedArm, EngineArm, GenerateArm
from saki.benchmarking.rollout import PHASES, prefill_work
from tests.benchmarking.conftest import CPU, VOCAB

KEYS = {
    "tokens_per_s",
    "tokens_per_cpu_s",
    "ratio_to_student_only",
    "tokens_per_wave",
    "correction_rate",
    "split",
    "peak_bytes",
}
IN_PROCESS = tuple(name for name in ARM_NAMES if not name.startswith("external"))


@dataclasses.dataclass
class ScriptedArm:
    """Says that it ran, and gives the lengths it is told to give."""

    name: str
    log: list
    shorter: int = 0
    block_size: int | None = None
    execution: str = "scripted"
    differs: str = ""
    law: str = "p"

    def run(self, work):
        self.log.append(self.name)
        first, *rest = work.lengths
        return ArmRun((first - self.shorter, *rest))

    def split(self):
        return nullcontext({})


def test_arms_alternate_after_one_warm_up_each(workload):
    log = []
    arms = [ScriptedArm(name, log) for name in ("a", "b", "student_only")]
    result = bench_rollout(arms, workload(), CPU, repeats=3)
    warm, turns = (
        ["a", "b", "student_only"],
        [["a", "b", "student_only"], ["b", "student_only", "a"], ["student_only", "a", "b"]],
    )
    assert result["order"] == turns
    assert log == warm + [name for turn in turns for name in turn] + warm  # the last runs are for the split


def test_an_arm_that_does_less_work_is_refused(workload):
    arms = [ScriptedArm("student_only", []), ScriptedArm("fast", [], shorter=1)]
    with pytest.raises(RuntimeError, match="fast gave 8 tokens in row 0, forced were 9"):
        bench_rollout(arms, workload(), CPU, repeats=1)


def test_no_repeat_begins_after_the_deadline_but_the_first(workload):
    assert len(bench_rollout([ScriptedArm("a", [])], workload(), CPU, repeats=5, deadline=0.0)["order"]) == 1


def test_every_arm_honours_forced_lengths_and_reports_by_the_schema(pair, workload):
    work = workload(lengths=(10,) * 4, samples=2)
    with open_arms(IN_PROCESS, pair, work, block_size=4) as (arms, skipped):
        assert [arm.name for arm in arms] == list(IN_PROCESS)
        for arm in arms:
            assert arm.run(work).lengths == work.lengths
        result = {**bench_rollout(arms, work, CPU, repeats=1), "skipped": skipped}
        prefill = prefill_work(arms[1], work)
    json.dumps(result)
    for name, arm in result["arms"].items():
        assert set(arm) >= KEYS
        assert set(arm["split"]) == set(PHASES)
        assert arm["tokens_per_s"] > 0
        assert arm["tokens_per_cpu_s"] > 0
        assert (arm["correction_rate"] is None) == (not name.startswith(("exact_q", "token_wise")))
    exact, token_wise = result["arms"]["exact_q"], result["arms"]["token_wise"]
    assert result["arms"]["student_only"]["ratio_to_student_only"] == 1.0
    assert exact["correction_rate"] == token_wise["correction_rate"] > 0
    assert token_wise["tokens_per_wave"] == 1.0
    assert 1.0 < exact["tokens_per_wave"] <= 4.0
    assert exact["split"]["verify"] > 0
    assert result["arms"]["student_only"]["split"]["verify"] == 0
    assert {result["arms"][name]["law"] for name in ("exact_q", "hf_generate", "hf_assisted")} == {"q", "p", "T"}
    assert "teacher's law" in result["arms"]["hf_assisted"]["differs"]
    assert prefill["ratio"] == 1.0  # the prompt's cache is shared by its samples
    table = rollout_table({**result, "prefill": prefill})
    assert all(name in table for name in IN_PROCESS)


def test_end_ids_of_a_model_end_nothing(pair, workload):
    models = [pair.build("student"), pair.build("teacher")]
    for model in models:
        model.generation_config.eos_token_id = list(range(VOCAB))
    work = workload(lengths=(6, 6))
    assert GenerateArm(models[0]).run(work).lengths == work.lengths
    for model in models:
        model.generation_config.eos_token_id = list(range(VOCAB))
    assert AssistedArm(*models).run(work).lengths == work.lengths


def test_arms_that_cannot_run_say_why(pair, workload):
    with open_arms(["exact_q", "hf_generate", "external_k8"], pair, workload(lengths=(3, 5))) as (arms, skipped):
        assert [arm.name for arm in arms] == ["exact_q"]
        assert set(skipped) == {"hf_generate", "external_k8"}
        assert "no forced length" in skipped["hf_generate"]


@pytest.mark.parametrize("names", [["exactq"], ["exact_q", "exact_q"], []])
def test_names_of_arms_are_checked(pair, workload, names):
    with pytest.raises(ValueError, match="arms must be distinct names"), open_arms(names, pair, workload()):
        pass


def test_waves_of_a_row_are_counted_as_the_engine_counts_them(pair, workload):
    assert waves_of_rows([], 9, 4) == 3
    assert waves_of_rows([0, 1, 5], 9, 4) == 1 + 1 + 1 + 1
    assert waves_of_rows([8], 9, 4) == 3
    with open_arms(["exact_q"], pair, workload(lengths=(60,)), block_size=4) as ((arm,), _):
        assert isinstance(arm, EngineArm)
        run = arm.run(workload(lengths=(60,)))
    assert run.corrections > 0
    assert waves_of_rows(run.correction_rows[0], 60, 4) == run.waves
