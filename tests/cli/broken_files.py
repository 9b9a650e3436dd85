"""Broken checkpoints and files, made when a row of a table of mistakes asks for them by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from saki.models import tiny_qwen3
from tests.tiny import VOCAB

WEIGHT = "model.layers.0.mlp.up_proj.weight"


def write_json(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_weight(folder, change):
    tensors = load_file(folder / "model.safetensors")
    value = change(tensors.pop(WEIGHT))
    save_file(tensors | ({} if value is None else {WEIGHT: value}), folder / "model.safetensors", {"format": "pt"})


def keep_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def make_run(folder):
    files = list(folder.iterdir())
    (folder / "model").mkdir()
    for file in files:
        file.rename(folder / "model" / file.name)
    (folder / "config.resolved.yaml").touch()


def make_adapter(folder):
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "base_model_name_or_path": "/no/such/base"}
    (folder / "adapter_config.json").write_text(json.dumps(values))


def of_type(config: transformers.PretrainedConfig) -> Callable[[Path], None]:
    return lambda folder: config.save_pretrained(folder)


def other_tokenizer(folder):
    tokens = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokens["model"]["vocab"]
    vocab["s"], vocab["t"] = vocab["t"], vocab["s"]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))


CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "good": lambda folder: None,
    "run": make_run,
    "bad_config": lambda folder: (folder / "config.json").write_text("{not"),
    "list_config": lambda folder: (folder / "config.json").write_text("[1]"),
    "wrong_field": lambda folder: write_json(folder / "config.json", num_hidden_layers="three"),
    "no_config": lambda folder: (folder / "config.json").unlink(),
    "bad_generation": lambda folder: (folder / "generation_config.json").write_text("{"),
    "cut_short": lambda folder: keep_half(folder / "model.safetensors"),
    "no_bytes": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "pickle": make_pickle,
    "no_tokenizer": lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
    "bad_tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "lacks_weight": lambda folder: change_weight(folder, lambda weight: None),
    "misshapen": lambda folder: change_weight(folder, lambda weight: weight[:, :-1].contiguous()),
    "nan": lambda folder: change_weight(folder, lambda weight: torch.full_like(weight, torch.nan)),
    "adapter": make_adapter,
    "unknown_type": lambda folder: write_json(folder / "config.json", model_type="frobnicate"),
    "own_code": lambda folder: write_json(
        folder / "config.json", model_type="frobnicate", auto_map={"AutoConfig": "a.B", "AutoModelForCausalLM": "c.D"}
    ),
    "mamba": of_type(transformers.MambaConfig(vocab_size=VOCAB)),
    "gpt_oss": of_type(transformers.GptOssConfig(vocab_size=VOCAB)),
    "t5": of_type(transformers.T5Config(vocab_size=VOCAB)),
    "bert": of_type(transformers.BertConfig(vocab_size=VOCAB)),
    "narrow": lambda folder: tiny_qwen3(VOCAB - 4, hidden=16, layers=1, heads=2, kv_heads=1).save_pretrained(folder),
    "other_tokens": other_tokenizer,
}

ROW = '{"prompt": "a b"}\n'
FILES: dict[str, bytes] = {
    "a_file": b"x",
    "no_bytes.jsonl": b"",
    "no_rows.json": b"[]",
    "blank.jsonl": b"\n\n",
    "no_bytes.csv": b"",
    "broken.jsonl": f'{ROW}{{"prompt": \n'.encode(),
    "strings.jsonl": b'"a"\n',
    "no_column.jsonl": b'{"question": "1+1", "solution": "2"}\n',
    "number.jsonl": b'{"prompt": 3}\n',
    "null.jsonl": b'{"prompt": null}\n',
    "numbers.jsonl": b'{"prompt": [1, 2]}\n',
    "no_role.jsonl": b'{"prompt": [{"content": "a"}]}\n',
    "no_content.jsonl": b'{"prompt": [{"role": "user"}]}\n',
    "empty_prompts.jsonl": b'{"prompt": ""}\n',
    "long.jsonl": ('{"prompt": "' + "1+" * 60 + '"}\n').encode(),
    "few.jsonl": b'{"prompt": "1+1="}\n',
    "text.txt": b"hello",
    "broken.parquet": b"hello",
    "list.yaml": b"- a\n",
    "nothing.yaml": b"# nothing\n",
    "broken.yaml": b"a: [\n",
    "twice.yaml": b"seed: 1\nlimit: 2\nseed: 3\n",
    "dashes.yaml": b"block_size: 1\nblock-size: 2\n",
    "unknown.yaml": b"metod: saki\n",
    "sampling.yaml": b"top_p: 0.9\n",
    "int.yaml": b"block_size: abc\n",
    "float.yaml": b"block_size: 1.5\n",
    "bool_for_int.yaml": b"block_size: true\n",
    "bool.yaml": b"json: yes please\n",
    "bare_no.yaml": b"method: no\n",
    "null.yaml": b"block_size: null\n",
    "values.yaml": b"block_size: [1, 2]\n",
    "mapping.yaml": b"model: {a: 1}\n",
    "number_key.yaml": b"1: 2\n",
    "binary.yaml": b"\xff\xfe\x00",
    "help.yaml": b"help: true\n",
}
