import json

import pytest
import torch

from saki.models import tiny_llama, tiny_qwen3
from saki.planning import PUBLISHED, load_shape, shape_from_config
from saki.rollout import HFDecoder


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_llama])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weight_bytes_are_those_of_a_real_model(make, dtype):
    model = make(50, hidden=48, layers=3, dtype=getattr(torch, dtype))
    shape = shape_from_config("tiny", model.config.to_dict())
    assert shape.weight_bytes(dtype) == sum(p.numel() * p.element_size() for p in model.parameters())


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-8b", "smollm2-135m"])
def test_published_shapes_are_those_of_the_library(name):
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    fields = {key: value for key, value in PUBLISHED[name].items() if key != "model_type"}
    kinds = (Qwen3Config, Qwen3ForCausalLM) if name.startswith("qwen3") else (LlamaConfig, LlamaForCausalLM)
    with torch.device("meta"):
        model = kinds[1](kinds[0](**fields, pad_token_id=None, bos_token_id=None, eos_token_id=None))
    assert load_shape(name).num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kv_bytes_are_those_of_a_slab_cache(dtype):
    model = tiny_qwen3(30, layers=3, heads=8, kv_heads=2, hidden=64, dtype=getattr(torch, dtype))
    shape = shape_from_config("tiny", model.config.to_dict())
    decoder = HFDecoder(model, 30)
    cache = decoder.new_cache(5, 17)
    decoder.forward(torch.ones(5, 2, dtype=torch.long), torch.zeros(5, dtype=torch.long), cache, 2, 1)
    assert 5 * 17 * shape.kv_bytes_per_token(dtype) == cache.num_bytes


def test_a_file_gives_fields_and_a_parameter_count(tmp_path):
    fields = {**PUBLISHED["smollm2-135m"], "model_type": "novel", "num_parameters": 140_000_000}
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(fields))
    assert load_shape(str(path)).num_parameters == 140_000_000
    (tmp_path / "shape.yaml").write_text(json.dumps(fields))
    assert load_shape(str(tmp_path / "shape.yaml")).num_parameters == 140_000_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": 0}, "at least 1"),
        ({"model_type": "novel"}, "num_parameters"),
        ({"num_key_value_heads": 2}, "expected a multiple"),
        ({"num_parameters": 5}, "matrices alone"),
    ],
)
def test_bad_configs_are_refused(change, message):
    fields = {key: value for key, value in {**PUBLISHED["smollm2-135m"], **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        shape_from_config("x", fields)
