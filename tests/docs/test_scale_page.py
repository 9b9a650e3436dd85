"""The page on many GPUs: its commands parse, what it names is there, its table of times is what a step logs."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from saki.training.step_clock import PARTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "scale.md").read_text()
LINES = [line for line in re.sub(r"\\\n\s+", "", TEXT).splitlines() if line.startswith("    accelerate launch ")]


@pytest.mark.parametrize("line", LINES)
def test_commands_parse(line, monkeypatch, tmp_path):
    from accelerate.commands.launch import launch_command_parser

    monkeypatch.chdir(ROOT)
    args = launch_command_parser().parse_args(shlex.split(line)[2:])
    assert Path(args.config_file).is_file()
    assert args.module
    assert args.training_script == "saki.cli.main"
    name, *words = args.training_script_args
    # bfloat16 autocast is refused without a GPU.
    words += ["--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false"]
    importlib.import_module(f"saki.cli.{name}").parser().parse(words)


PLANS = [line for line in TEXT.splitlines() if line.startswith("    saki plan ")]
RAY = [line for line in TEXT.splitlines() if line.startswith("    ray start ")]


@pytest.mark.parametrize("line", PLANS)
def test_plans_parse(line, monkeypatch):
    monkeypatch.chdir(ROOT)
    importlib.import_module("saki.cli.plan").parser().parse(shlex.split(line)[2:])


@pytest.mark.parametrize("line", RAY)
def test_ray_knows_its_options(line):
    scripts = pytest.importorskip("ray.scripts.scripts")
    assert scripts.start.make_context("start", shlex.split(line)[2:]).params["head"] == ("--head" in line)


def test_every_setting_and_default_is_the_pools():
    from saki.training.pool_options import PoolOptions

    names = set(re.findall(r"(?:`|--)(pool_\w+)", TEXT))
    options = PoolOptions()
    assert names
    assert names <= vars(options).keys()
    assert f"`pool_bucket_mb` ({options.pool_bucket_mb} MiB)" in TEXT
    assert f"`pool_max_failures` ({options.pool_max_failures})" in TEXT
    assert options.pool_settings(batch_rows=64, on_gpu=False).unit_rows == 2 * 64


def test_what_it_names_is_there():
    assert len(LINES) == 5
    assert len(PLANS) == len(RAY) == 2
    for path in re.findall(r"(?:configs|tests)/[\w./]+\.(?:yaml|py)", TEXT):
        assert (ROOT / path).is_file(), path


def test_the_table_of_times_holds_every_part():
    section = TEXT.partition("## Where the time of a step goes")[2]
    listed = re.findall(r"^\| `time/(\w+)_s` \|", section, flags=re.MULTILINE)
    assert listed == [*PARTS, "rest", "step"]
