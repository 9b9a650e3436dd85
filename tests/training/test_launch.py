"""How runs are launched: the shipped configurations, what is refused, and how a launch ends when a rank is lost."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import MixedPrecisionPolicy

from saki.training.launch import SHUTDOWN, SHUTDOWN_SECONDS, check_launch, check_launched, use_float32_reductions
from tests.training.launching import free_port

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "accelerate"


def arguments(**changes):
    return SimpleNamespace(**{"n_gpu": 1, "process_index": 0, "_n_gpu": 1, "bf16": False, "fp16": False, **changes})


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_shipped_configurations_are_of_the_library_s_schema(name, monkeypatch):
    """Each key is one that accelerate launch knows, and what it makes of them passes saki's own checks."""
    from accelerate.commands.launch import launch_command_parser

    config = load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(config.fsdp_config) <= known
    assert config.num_processes == 8
    for key, value in config.fsdp_config.items():
        monkeypatch.setenv(key.upper(), str(value))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", str(bool(config.fsdp_config)).lower())
    check_launch(arguments())
    if name == "fsdp2":
        plugin = FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        assert "FULL" in str(plugin.state_dict_type)
        assert not plugin.cpu_ram_efficient_loading
        check_launched(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FSDP_VERSION": "1"}, "set fsdp_version to 2"),
        ({}, "set fsdp_version to 2"),
        ({"FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "fsdp_cpu_ram_efficient_loading .* to false"),
    ],
)
def test_shards_that_cannot_be_streamed_are_refused_before_anything_is_loaded(environment, message, monkeypatch):
    for name in ("FSDP_VERSION", "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"ACCELERATE_USE_FSDP": "true", **environment}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        check_launch(arguments())


def test_deepspeed_may_shard_the_optimizer_only():
    def state(stage):
        return SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=stage)))

    check_launched(state(2))
    with pytest.raises(ValueError, match="ZeRO 3 shards the parameters"):
        check_launched(state(3))


def test_one_process_takes_one_gpu_and_says_so(caplog):
    args = arguments(n_gpu=4)
    check_launch(args)
    assert args._n_gpu == 1
    assert "4 GPUs are visible" in caplog.text


def test_a_precision_that_only_accelerate_knows_is_refused(monkeypatch):
    """The update would run in it, and the rollout's copy would not."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ValueError, match="set bf16 to true, or accelerate's mixed_precision to 'no'"):
        check_launch(arguments())
    check_launch(arguments(bf16=True))


@pytest.mark.parametrize(("process", "timeout", "said"), [(0, None, True), (1, None, False), (0, "3600", False)])
def test_what_the_launcher_does_with_a_signal_is_told_once(process, timeout, said, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "saki")  # other ranks are silenced, until the test ends
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.delenv(SHUTDOWN, raising=False)
    if timeout is not None:
        monkeypatch.setenv(SHUTDOWN, timeout)
    check_launch(arguments(process_index=process))
    assert (f"kills this process {SHUTDOWN_SECONDS} s later" in caplog.text) == said


def test_gradients_are_reduced_in_float32_and_logprobs_left_as_they_are():
    plugin = SimpleNamespace(
        mixed_precision_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, output_dtype=torch.bfloat16)
    )
    use_float32_reductions(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, torch.float32, None)


def launch(out, *options):
    """``accelerate launch`` with the shipped configuration, on two processes without a GPU."""
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / "ddp.yaml")),
        *("--num_processes", "2", "--main_process_port", str(free_port()), "-m", "saki.cli.main", "train"),
        *(str(ROOT / "configs" / "lab.yaml"), "--prompts_per_step", "4", "--num_generations", "2"),
        *("--per_device_train_batch_size", "4", "--max_steps", "2", "--out", str(out), *options),
    ]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        command,
        cwd=out.parent,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
def test_a_launch_leaves_one_run_folder_and_one_rank_speaks(tmp_path):
    out = tmp_path / "run"
    done = launch(out, "--max_completion_length", "4", "--json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.stdout.count("report: ") == 1
    assert done.stderr.count("vocabulary: ") == 1
    assert done.stderr.count("reached max_completion_length = 4; raise it") == 1
    assert last["steps"] == 2
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    assert (out / "model" / "model.safetensors").is_file()
    assert (out / "report.html").is_file()
    assert sorted(path.name for path in (out / "rollouts").iterdir()) == [
        f"step-{step:06d}-rank{rank}.parquet" for step in (1, 2) for rank in (0, 1)
    ]


@pytest.mark.slow
def test_a_launch_fails_when_one_rank_is_lost(tmp_path):
    """Rank 1 raises while rank 0 goes into the update, where it would wait for good."""
    done = launch(tmp_path / "run", "--method", "tests.training.failing:METHOD")
    assert done.returncode != 0
    assert "this rank is lost" in done.stderr
