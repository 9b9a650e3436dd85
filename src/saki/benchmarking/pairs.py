"""The pairs of models that benchmarks run: made in code, or loaded from folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from saki.lab import training_problems
from saki.models import load_causal_lm, load_pair, tiny_qwen3
from saki.rollout import HFDecoder

Side = Literal["student", "teacher"]

PRESETS = ("tiny", "folders", "smollm2", "qwen3-shapes")
OF_FOLDERS = ("folders", "smollm2")
"""Presets that load two folders; they differ in the name alone."""

TINY_VOCAB = 4096
QWEN3_VOCAB = 151_936

_TINY: dict[str, dict[str, Any]] = {
    "student": {"hidden": 128, "layers": 2, "seed": 1},
    "teacher": {"hidden": 192, "layers": 6, "seed": 2},
}
"""1.3 and 3.6 million parameters."""

_QWEN3: dict[str, dict[str, Any]] = {
    "student": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "teacher": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
"""Shapes of Qwen3-1.7B and Qwen3-4B."""


@dataclass(frozen=True)
class BenchPair:
    """A student and a teacher that can be made as often as arms need them, with the same weights each time.

    Attributes:
        name: Preset.
        vocab_size: Real ids.
        device: Where models are put.
        build: Makes one of the two anew, in eval mode, on the device.
        served: Keyword arguments of the external loop's ``ServedModel`` for one of the two.
        prompt_ids: Makes n prompts of exactly so many tokens, the same each time: (n, length, seed) -> ids.
        tokenizer: Tokenizer of the pair, or None where there is none.
        description: One line for tables.
    """

    name: str
    vocab_size: int
    device: torch.device
    build: Callable[[Side], PreTrainedModel]
    served: Callable[[Side], dict[str, Any]]
    prompt_ids: Callable[[int, int, int], list[tuple[int, ...]]]
    tokenizer: PreTrainedTokenizerBase | None
    description: str

    def decoder(self, side: Side) -> HFDecoder:
        """A decoder with a module of its own."""
        return HFDecoder(self.build(side), self.vocab_size)


def make_pair(
    preset: str,
    *,
    model: str | None = None,
    teacher_model: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> BenchPair:
    """A pair by preset.

    Args:
        preset: ``tiny`` (random Qwen3 of 1.3 and 3.6 million parameters, 4,096 ids), ``folders``, by
            another name ``smollm2``, or
            ``qwen3-shapes`` (random models with the shapes of Qwen3-1.7B and 4B).
        model: Student folder of ``folders``.
        teacher_model: Teacher folder of ``folders``.
        dtype: Dtype of both models.
        device: By default the CPU.

    Raises:
        ValueError: If the preset is unknown, or folders are missing or not wanted.
    """
    device = device or torch.device("cpu")
    if preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    folders = (model, teacher_model)
    if None in folders if preset in OF_FOLDERS else folders != (None, None):
        raise ValueError(
            f"preset {preset!r} takes "
            + (
                "two folders; give --model and --teacher_model"
                if preset in OF_FOLDERS
                else "no folders; leave them out"
            )
        )
    if preset in OF_FOLDERS:
        assert model is not None
        assert teacher_model is not None
        return _loaded_pair(preset, model, teacher_model, dtype, device)
    tiny = preset == "tiny"
    vocab = TINY_VOCAB if tiny else QWEN3_VOCAB
    name = str(dtype).removeprefix("torch.")

    def build(side: Side) -> PreTrainedModel:
        return _random_model(preset, side, dtype, device)

    def served(side: Side) -> dict[str, Any]:
        arguments = {"preset": preset, "side": side, "dtype": name, "device": str(device)}
        return {"factory": "saki.benchmarking.pairs:served_decoder", "arguments": arguments}

    return BenchPair(
        name=preset,
        vocab_size=vocab,
        device=device,
        build=build,
        served=served,
        prompt_ids=lambda count, length, seed: _random_prompts(count, length, seed, vocab),
        tokenizer=word_tokenizer(vocab) if tiny else None,
        description=f"random Qwen3 {'1.3M / 3.6M' if tiny else '1.7B / 4B'}, {vocab} ids, {name}",
    )


def served_decoder(preset: str, side: Side, dtype: str, device: str) -> HFDecoder:
    """The factory that a server process of the external loop calls."""
    return make_pair(preset, dtype=getattr(torch, dtype), device=torch.device(device)).decoder(side)


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose words are w0, w1, ...: id i is the word wi; the last two ids are an end and a padding token."""
    words = {f"w{index}": index for index in range(vocab_size - 2)}
    words.update({"<end>": vocab_size - 2, "<pad>": vocab_size - 1})
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")


def _random_model(preset: str, side: Side, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    if preset == "tiny":
        model = tiny_qwen3(TINY_VOCAB, dtype=dtype, scale=0.2, **_TINY[side])
        return model.to(device)  # type: ignore[arg-type]
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=QWEN3_VOCAB,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        dtype=dtype,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **_QWEN3[side],
    )
    devices = [device] if device.type == "cuda" else []
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=devices), torch.device(device):
        torch.manual_seed(1 if side == "student" else 2)
        torch.set_default_dtype(dtype)  # so that 4B parameters are never there in float32
        try:
            model = Qwen3ForCausalLM(config)
        finally:
            torch.set_default_dtype(default)
    return model.eval()


def _random_prompts(count: int, length: int, seed: int, vocab: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab - 2, (count, length), generator=generator)
    return [tuple(row) for row in ids.tolist()]


def _loaded_pair(preset: str, model: str, teacher_model: str, dtype: torch.dtype, device: torch.device) -> BenchPair:
    pair = load_pair(model, teacher_model, student_dtype=dtype, teacher_dtype=dtype, device=device)
    folders: dict[Side, str] = {"student": model, "teacher": teacher_model}
    name = str(dtype).removeprefix("torch.")
    first: dict[Side, Any] = {"student": pair.student, "teacher": pair.teacher}

    def build(side: Side) -> PreTrainedModel:
        loaded = first.pop(side, None)  # the modules of the check are used once, later ones are loaded again
        if loaded is None:
            loaded = load_causal_lm(folders[side], dtype=dtype).to(device).eval()  # type: ignore[arg-type]
        return loaded

    def served(side: Side) -> dict[str, Any]:
        return {
            "folder": folders[side],
            "vocab_size": pair.spec.vocab_size,
            "dtype": name,
            "device": str(device),
        }

    return BenchPair(
        name=preset,
        vocab_size=pair.spec.vocab_size,
        device=device,
        build=build,
        served=served,
        prompt_ids=lambda count, length, seed: text_prompts(pair.tokenizer, count, length, seed),
        tokenizer=pair.tokenizer,
        description=f"{model} / {teacher_model}, {pair.spec.vocab_size} ids, {name}",
    )


def text_prompts(tokenizer: PreTrainedTokenizerBase, count: int, length: int, seed: int) -> list[tuple[int, ...]]:
    """Prompts of exactly so many tokens: the ends of lists of solved arithmetic problems."""
    prompts = []
    for index in range(count):
        ids: list[int] = []
        number = 0
        while len(ids) < length:
            problems = training_problems(32, seed + index * 1000 + number)
            text = "\n".join(problem.prompt + problem.trace for problem in problems) + "\n"
            ids = list(tokenizer(text, add_special_tokens=False)["input_ids"]) + ids
            number += 1
        prompts.append(tuple(ids[-length:]))
    return prompts
