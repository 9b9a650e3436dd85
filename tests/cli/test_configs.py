"""Every shipped configuration loads and resolves, and the demo's settings stand once in meaning."""

from dataclasses import fields
from pathlib import Path

import pytest

from saki.config import CommandParser
from saki.config.commands import CommonArguments, TrainArguments
from saki.config.recipes import lab_config
from saki.training import SakiConfig

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))


def parsed(path, *words):
    parser = CommandParser([CommonArguments, TrainArguments, SakiConfig], "saki train", "Train.", "saki train")
    return parser.parse([str(path), *words])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configs_load(path, tmp_path):
    # bfloat16 autocast is refused without a GPU; everything else resolves as it is.
    _, train, config = parsed(path, "--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false")
    assert train.model
    assert train.teacher_model
    assert config.gradient_accumulation_steps >= 1


def test_the_demo_and_its_file_agree(tmp_path):
    _, _, from_file = parsed(CONFIGS[0].parent / "lab.yaml", "--output_dir", str(tmp_path))
    from_code = lab_config(str(tmp_path))
    for field in fields(SakiConfig):
        if field.init and field.name not in ("logging_dir", "accelerator_config", "run_name"):
            assert getattr(from_file, field.name) == getattr(from_code, field.name), field.name
