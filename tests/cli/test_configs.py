"""Every shipped configuration loads and resolves by the command it is for, and says what the paper says."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

import saki.cli.data
import saki.cli.eval
import saki.cli.plan
import saki.cli.teacher
from saki.config import CommandParser
from saki.config.benchmarks import benchmark_choices
from saki.config.commands import CommonArguments, TrainArguments
from saki.config.recipes import lab_config
from saki.evaluation import PAPER_BENCHMARKS
from saki.training import SakiConfig

ROOT = Path(__file__).parents[2] / "configs"
OTHERS = {
    "lab_teacher.yaml": "teacher",
    "paper/teacher_grpo.yaml": "teacher",
    "paper/evaluation.yaml": "eval",
    "paper/data.yaml": "data",
}
CONFIGS = [
    path
    for path in sorted(ROOT.rglob("*.yaml"))
    if str(path.relative_to(ROOT)) not in OTHERS and path.parent.name != "accelerate"
]

BOTH = ("opd", "exopd", "skd", "trb", "saki")
"""Rows of Tables 1 and 2 that are trained, for each student."""

ROWS = {
    **{f"{method}_{size}": method for method in BOTH for size in ("1.7b", "0.6b")},
    "random_tm_1.7b": "random_tm",  # Table 6, beside trb and saki
    "tv_weighted_tm_1.7b": "tv_weighted_tm",
    "teacher_sampled_1.7b": "teacher_sampled",  # Table 8, beside trb and saki
}
GUIDED = ("trb", "saki", "random_tm", "tv_weighted_tm", "teacher_sampled")

# bfloat16 autocast is refused without a GPU; everything else resolves as it is.
ON_CPU = ("--use_cpu", "true", "--bf16", "false")


def parsed(path, *words):
    parser = CommandParser([CommonArguments, TrainArguments, SakiConfig], "saki train", "Train.", "saki train")
    return parser.parse([str(path), *words])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configs_load(path, tmp_path):
    _, train, config = parsed(path, "--output_dir", str(tmp_path), *ON_CPU)
    assert train.model
    assert train.teacher_model
    assert config.gradient_accumulation_steps >= 1


def test_every_row_of_the_tables_has_its_configuration_and_no_other_is_there():
    assert {path.stem for path in (ROOT / "paper").iterdir()} == {*ROWS, "teacher_grpo", "evaluation", "data"}


@pytest.mark.parametrize("name", ROWS)
def test_rows_train_as_table_5_says(name, tmp_path):
    _, train, config = parsed(ROOT / "paper" / f"{name}.yaml", "--output_dir", str(tmp_path), *ON_CPU)
    size = name.rsplit("_", 1)[1].replace("b", "B")
    assert train.model == f"Qwen/Qwen3-{size}-Base"
    assert train.teacher_model == "lllyx/Qwen3-4B-Base-GRPO"
    assert config.method == ROWS[name]
    assert (config.max_steps, config.prompts_per_step, config.num_generations) == (200, 64, 8)
    assert (config.max_prompt_length, config.max_completion_length) == (1024, 7168)
    assert (config.learning_rate, config.lr_scheduler_type, config.warmup_steps) == (1e-6, "constant", 0)
    assert (config.weight_decay, config.max_grad_norm) == (0.01, 1.0)
    assert (config.adam_beta1, config.adam_beta2, config.prompt_suffix) == (0.9, 0.999, None)
    if config.method in GUIDED:
        assert config.block_size == 8
        radii = [config.radius_at(step) for step in (1, 26, 50, 51, 200)]
        assert radii == pytest.approx([0.02, 0.01, 0.0004, 0.0, 0.0])
    options = {"exopd": {"exopd_lambda": 1.25}, "skd": {"top_k": 25}}
    assert config.method_options == options.get(config.method)


def test_rows_differ_in_method_and_student_alone(tmp_path):
    """The paper's protocol is matched: only what names the row may differ, and what its method needs."""
    own = {"method", "method_options", "output_dir", "logging_dir", "run_name"}
    all_values = [
        {
            field.name: getattr(config, field.name)
            for field in fields(SakiConfig)
            if field.init and field.name not in own and "config" not in field.name
        }
        for _, _, config in (
            parsed(ROOT / "paper" / f"{name}.yaml", "--output_dir", str(tmp_path), *ON_CPU) for name in ROWS
        )
    ]
    assert all(values == all_values[0] for values in all_values)


@pytest.mark.parametrize("name", [name for name, command in OTHERS.items() if command == "teacher"])
def test_teacher_configs_load(name, tmp_path):
    pytest.importorskip("trl")
    words = [str(ROOT / name), "--output_dir", str(tmp_path), *ON_CPU]
    _, args, config = saki.cli.teacher.parser().parse(words)
    assert args.model
    assert args.dataset
    completions = config.prompts_per_step * config.num_generations
    assert config.generation_batch_size == completions
    assert config.gradient_accumulation_steps * config.per_device_train_batch_size == completions
    assert (config.temperature, config.top_p, config.top_k, config.beta) == (1.0, 1.0, 0, 0.0)


def test_the_paper_teacher_is_table_4(tmp_path):
    pytest.importorskip("trl")
    words = [str(ROOT / "paper" / "teacher_grpo.yaml"), "--output_dir", str(tmp_path), *ON_CPU]
    _, args, config = saki.cli.teacher.parser().parse(words)
    assert args.model == "Qwen/Qwen3-4B-Base"
    assert (config.num_train_epochs, config.max_steps) == (1, -1)
    assert (config.prompts_per_step, config.num_generations) == (64, 8)
    assert (config.max_prompt_length, config.max_completion_length) == (1024, 7168)
    assert (config.learning_rate, config.repetition_penalty, config.loss_type) == (1e-6, 1.0, "dapo")
    assert config.scale_rewards == "group"
    assert config.num_iterations == 1
    assert not config.mask_truncated_completions
    assert not config.vllm_importance_sampling_correction


def test_the_evaluation_is_that_of_the_paper(tmp_path):
    _, args = saki.cli.eval.parser().parse([str(ROOT / "paper" / "evaluation.yaml")])
    assert [each.name for each in benchmark_choices(args.benchmarks)] == [each.name for each in PAPER_BENCHMARKS]
    assert (args.num_samples, args.max_new_tokens, args.temperature) == (8, 16384, 1.0)
    assert (args.limit, args.prompt_suffix) == (None, None)


def test_the_data_are_kept_whole():
    _, args = saki.cli.data.parser().parse([str(ROOT / "paper" / "data.yaml")])
    assert (args.language, args.deduplicate, args.suffix, args.max_prompt_length) == ("any", False, None, None)


def test_the_demo_and_its_file_agree(tmp_path):
    _, _, from_file = parsed(ROOT / "lab.yaml", "--output_dir", str(tmp_path))
    from_code = lab_config(str(tmp_path))
    for field in fields(SakiConfig):
        if field.init and field.name not in ("logging_dir", "accelerator_config", "run_name"):
            assert getattr(from_file, field.name) == getattr(from_code, field.name), field.name


@pytest.mark.parametrize("name", ROWS)
def test_rows_plan(name, capsys):
    """The planner takes what trains: its numbers follow the row's own settings, not the planner's defaults."""
    words = [str(ROOT / "paper" / f"{name}.yaml"), "--device", "a800", "--num_devices", "8", "--json"]
    assert saki.cli.plan.run(words) == 0
    shown = capsys.readouterr().out
    assert ("rolls out the student alone" in shown) == (ROWS[name] in ("opd", "exopd"))
    assert ("knows no radius" in shown) == (ROWS[name] == "skd")
    by_hand = ["--model", f"qwen3-{name.rsplit('_', 1)[1]}", "--teacher_model", "qwen3-4b", *words[1:]]
    by_hand += ["--gradient_checkpointing", "true", "--per_device_train_batch_size", "2", "--rollout_batch_rows", "16"]
    assert saki.cli.plan.run(by_hand) == 0
    row, hand = (json.loads(text.strip().splitlines()[-1]) for text in (shown, capsys.readouterr().out))
    assert {key: row[key] for key in ("devices", "seconds")} == {key: hand[key] for key in ("devices", "seconds")}
