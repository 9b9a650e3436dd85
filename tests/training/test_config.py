"""The configuration: the paper's defaults, derived accumulation, one sentence per mistake."""

import pytest
import torch

from saki.training import SakiConfig, SakiTrainer
from tests.tiny import tiny_pair, tiny_rows, tiny_tokenizer


def test_paper_defaults(tmp_path):
    config = SakiConfig(output_dir=str(tmp_path), use_cpu=True)
    assert (config.prompts_per_step, config.num_generations, config.max_steps) == (64, 8, 200)
    assert (config.learning_rate, config.weight_decay, config.max_grad_norm) == (1e-6, 0.01, 1.0)
    assert (config.adam_beta1, config.adam_beta2) == (0.9, 0.999)
    assert (config.trust_region_radius, config.radius_anneal_steps, config.block_size) == (0.02, 50, 8)
    assert (config.max_prompt_length, config.max_completion_length) == (1024, 7168)
    assert config.gradient_accumulation_steps == 64
    assert [config.radius_at(step) for step in (1, 51, 200)] == [0.02, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"trust_region_radius": -0.1}, "trust_region_radius must be at least 0, got -0.1"),
        ({"method": "sakki"}, "did you mean 'saki'"),
        ({"radius_floor": 0.03}, "radius_floor must lie between"),
        ({"method": "exopd", "method_options": {"exopd_lamda": 1.0}}, "did you mean 'exopd_lambda'"),
        ({"method": "exopd", "method_options": '{"exopd_lambda": "much"}'}, "must be of type float"),
        ({"method": "opd", "method_options": {"top_k": 1}}, "it has none"),
        ({"method_options": "{"}, "method_options is not valid JSON"),
        ({"radius_schedule": "sine"}, "radius_schedule"),
        ({"per_device_train_batch_size": 7}, "multiple"),
        ({"gradient_accumulation_steps": 3}, "leave it out"),
        ({"advantage_clip": 0.0}, "advantage_clip"),
        ({"lr_scheduler_kwargs": [1]}, "lr_scheduler_kwargs must be a JSON object"),
        ({"gradient_checkpointing_kwargs": "foo"}, "gradient_checkpointing_kwargs is not valid JSON"),
        ({"optim_args": "a=1,b"}, "optim_args must be key=value pairs"),
        ({"ignore_data_skip": True}, "would train on the first prompts again"),
        ({"save_on_each_node": True}, "leave them out"),
        ({"accelerator_config": {"split_batches": True}}, "would change which completions a rank trains on"),
        ({"accelerator_config": {"even_batches": False}}, "would change which completions a rank trains on"),
        (
            {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycle": 2}},
            r"lr_scheduler_kwargs .* do not suit lr_scheduler_type cosine: .*'num_cycle'",
        ),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "do not suit .*: .*'num_decay_steps'"),
        ({"lr_scheduler_kwargs": {"min_lr": 1e-7}}, "constant takes no lr_scheduler_kwargs"),
        ({"eval_strategy": "steps", "eval_steps": -5}, "eval_steps must be above 0, got -5"),
        ({"num_train_epochs": 5}, "num_train_epochs is 5, .* max_steps is 200; set max_steps to -1 to count epochs"),
        ({"rollout_dtype": "int8"}, "rollout_dtype"),
        ({"logging_nan_inf_filter": True}, "must stay off"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ],
)
def test_mistakes(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        SakiConfig(output_dir=str(tmp_path), use_cpu=True, **changes)


def test_a_missing_tensorboard_is_a_note_and_a_missing_tracker_that_was_asked_for_an_error(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("saki.training.config.get_available_reporting_integrations", list)
    assert SakiConfig(output_dir=str(tmp_path), use_cpu=True).report_to == []
    assert caplog.messages == [
        "tensorboard is not installed, so metrics go to metrics.jsonl alone; pip install tensorboard for its charts, "
        "or report_to none to do without this note"
    ]
    with pytest.raises(ValueError, match="report_to names 'wandb', which is not installed"):
        SakiConfig(output_dir=str(tmp_path), use_cpu=True, report_to="wandb")


def test_gradient_checkpointing_by_its_old_name_warns_of_nothing_and_changes_nothing(tmp_path):
    trained = []
    for on in (False, True):
        args = SakiConfig(
            output_dir=str(tmp_path / str(on)),
            gradient_checkpointing=on,
            max_steps=1,
            prompts_per_step=2,
            num_generations=2,
            per_device_train_batch_size=4,
            max_completion_length=6,
            learning_rate=1e-2,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        assert bool(args.gradient_checkpointing) == on
        student, teacher = tiny_pair()
        trainer = SakiTrainer(student, teacher, args, tiny_rows(4), processing_class=tiny_tokenizer())
        calls = []
        trainer.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        trainer.train()
        trained.append((dict(trainer.model.named_parameters()), len(calls)))
    (plain, once), (checkpointed, again) = trained
    assert again == 2 * once  # the layers run once more in the backward pass
    for name, parameter in plain.items():
        torch.testing.assert_close(parameter, checkpointed[name], msg=name)


def test_ranks_wait_for_a_pool_as_long_as_it_may_take(tmp_path):
    pytest.importorskip("ray")
    options = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "engine": "pool"}
    assert SakiConfig(**options).ddp_timeout == 1800 + 300 + 1800
    assert SakiConfig(**options, pool_start_timeout=60.0, ddp_timeout=9000).ddp_timeout == 9000
