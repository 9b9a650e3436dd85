import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from saki.models import (
    ModelLoadError,
    TokenizerMismatchError,
    UnsupportedArchitectureError,
    load_causal_lm,
    load_pair,
    load_teacher,
    load_tokenizer,
)

# peft reads a property of the model that transformers is renaming.
PEFT_WARNING = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")

IDS = torch.tensor([[3, 4, 5]])


def test_pair_is_loaded_in_its_dtypes_and_resolved(checkpoint, caplog):
    student, teacher = checkpoint("student", 16, dtype=torch.bfloat16), checkpoint("teacher", 20, dtype=torch.bfloat16)
    with caplog.at_level("INFO", logger="saki.models"):
        pair = load_pair(student, str(teacher))
    assert pair.student.dtype == torch.float32
    assert pair.teacher.dtype == torch.float32
    assert load_pair(student, teacher, teacher_dtype="bfloat16").teacher.dtype == torch.bfloat16
    assert all(parameter.requires_grad for parameter in pair.student.parameters())
    assert not any(parameter.requires_grad for parameter in pair.teacher.parameters())
    assert not pair.student.training
    assert not pair.teacher.training
    assert (pair.spec.vocab_size, pair.spec.stop_token_ids, pair.spec.pad_token_id) == (13, (1,), 0)
    assert pair.student_architecture.verified
    assert pair.teacher_architecture.num_layers == 1
    assert "stop ids (1,)" in caplog.text
    assert "padding ids" in caplog.text
    alone = load_pair(student, None, student_dtype="auto")
    assert alone.teacher is None
    assert alone.student.dtype == torch.bfloat16


def test_auto_widens_a_teacher_that_runs_on_a_cpu_and_leaves_others_as_stored(checkpoint, caplog):
    narrow, wide = checkpoint("narrow", dtype=torch.bfloat16), checkpoint("wide", dtype=torch.float64)
    stored = load_causal_lm(narrow)
    with caplog.at_level("INFO", logger="saki.models"):
        widened = load_teacher(narrow)
    assert widened.dtype == torch.float32
    assert "stored in torch.bfloat16" in caplog.text
    for name, weight in widened.state_dict().items():
        assert torch.equal(weight, stored.state_dict()[name].float())
    assert load_teacher(wide).dtype == torch.float64
    assert load_teacher(narrow, runs_on="cuda").dtype == torch.bfloat16
    assert load_teacher(narrow, dtype="bfloat16").dtype == torch.bfloat16
    assert not any(parameter.requires_grad for parameter in widened.parameters())


def test_pair_with_another_tokenizer_is_refused(checkpoint, make_tokenizer):
    student, teacher = checkpoint("student"), checkpoint("teacher")
    make_tokenizer(["<pad>", "<eos>", "<turn>", *"jihgfedcba"]).save_pretrained(teacher)
    with pytest.raises(TokenizerMismatchError, match="differ at 10 ids"):
        load_pair(student, teacher)


def test_round_trip_and_dtype_names(checkpoint):
    folder = checkpoint()
    first, second = load_causal_lm(folder), load_causal_lm(folder, dtype="float64")
    assert second.dtype == torch.float64
    torch.testing.assert_close(first(IDS).logits.double(), second(IDS).logits, rtol=0.0, atol=1e-5)
    with pytest.raises(ValueError, match="expected 'auto' or a floating dtype"):
        load_causal_lm(folder, dtype="int64")


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "a/b/c", ""])
@pytest.mark.parametrize("load", [load_causal_lm, load_tokenizer])
def test_missing_folders_are_named(name, load):
    with pytest.raises(ModelLoadError, match="there is no checkpoint folder"):
        load(name)


def test_empty_folder_and_missing_parts_are_named(checkpoint, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError, match="is empty"):
        load_causal_lm(tmp_path / "empty")
    folder = checkpoint()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"no weights as \.safetensors .found pytorch_model\.bin.*pickle"):
        load_causal_lm(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"has no config\.json"):
        load_causal_lm(folder)


@pytest.mark.parametrize("damage", ["config", "model_type", "weights", "missing", "shape"])
def test_malformed_checkpoints_give_one_sentence(checkpoint, damage):
    folder = checkpoint()
    weights = folder / "model.safetensors"
    if damage == "config":
        (folder / "config.json").write_text("{not json")
    elif damage == "model_type":
        (folder / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    elif damage == "weights":
        weights.write_bytes(weights.read_bytes()[:200])
    else:
        tensors = load_file(weights)
        name = "model.layers.0.self_attn.q_proj.weight"
        tensors = {key: value for key, value in tensors.items() if key != name}
        if damage == "shape":
            tensors[name] = torch.zeros(2, 2)
        save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError) as caught:
        load_causal_lm(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tokenizer_errors_are_named(checkpoint):
    folder = checkpoint()
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="could not load a tokenizer"):
        load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json' is not valid JSON"):
        load_tokenizer(folder)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelLoadError, match="has no tokenizer"):
        load_tokenizer(folder)


def test_unsupported_architecture_is_refused(tmp_path, make_tokenizer):
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=16, hidden_size=8, state_size=2, num_hidden_layers=1)
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    make_tokenizer().save_pretrained(tmp_path / "mamba")
    with pytest.raises(UnsupportedArchitectureError, match="mamba"):
        load_pair(tmp_path / "mamba", None)


def _adapter(folder, target, **options):
    peft = pytest.importorskip("peft")
    base = load_causal_lm(folder)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], **options))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)
    model.save_pretrained(target)
    return model.eval()


@PEFT_WARNING
def test_adapter_folder_is_merged_into_a_plain_model(checkpoint, tmp_path):
    folder = checkpoint()
    adapted = _adapter(folder, tmp_path / "adapter", r=2)
    merged = load_causal_lm(tmp_path / "adapter")
    assert type(merged).__name__ == "Qwen3ForCausalLM"
    assert merged.state_dict().keys() == load_causal_lm(folder).state_dict().keys()
    torch.testing.assert_close(merged(IDS).logits, adapted(IDS).logits, rtol=0.0, atol=1e-5)
    assert not torch.allclose(merged(IDS).logits, load_causal_lm(folder)(IDS).logits, atol=1e-3)
    assert load_causal_lm(tmp_path / "adapter", dtype=torch.bfloat16).dtype == torch.bfloat16


@PEFT_WARNING
def test_incomplete_and_pickled_adapters_are_refused(checkpoint, tmp_path):
    adapter = tmp_path / "adapter"
    _adapter(checkpoint(), adapter, r=2)
    weights = adapter / "adapter_model.safetensors"
    tensors = load_file(weights)
    save_file(dict(list(tensors.items())[:1]), weights)
    with pytest.raises(ModelLoadError, match="missing adapter keys"):
        load_causal_lm(adapter)
    weights.rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match=r"no adapter weights as \.safetensors"):
        load_causal_lm(adapter)
