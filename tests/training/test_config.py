"""The configuration: the paper's defaults, derived accumulation, one sentence per mistake."""

import pytest

from saki.training import SakiConfig


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
        ({"rollout_dtype": "int8"}, "rollout_dtype"),
        ({"logging_nan_inf_filter": True}, "must stay off"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ],
)
def test_mistakes(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        SakiConfig(output_dir=str(tmp_path), use_cpu=True, **changes)
