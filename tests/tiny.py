"""A tiny pair, tokenizer and data set made in code, for tests of what stands above the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from saki.models import tiny_qwen3
from saki.training import SakiConfig, SakiTrainer

WORDS = ("<pad>", "<end>", *"abcdefghijklmnopqrst")
VOCAB = len(WORDS)


def tiny_tokenizer(pad_is_eos: bool = False) -> PreTrainedTokenizerFast:
    """Words a .. t, an end and a padding token."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<end>",
        pad_token="<end>" if pad_is_eos else "<pad>",
        model_max_length=512,
    )


def tiny_pair(dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A student and a teacher of differing shape and padded width."""
    student = tiny_qwen3(VOCAB + 2, seed=1, dtype=dtype, scale=0.3)
    teacher = tiny_qwen3(VOCAB + 10, layers=3, hidden=48, seed=2, dtype=dtype, scale=0.3)
    for model in (student, teacher):
        model.config.eos_token_id = model.generation_config.eos_token_id = 1
    return student, teacher


def tiny_rows(num: int) -> list[dict[str, str]]:
    """Plain prompts of one to five words."""
    return [{"prompt": " ".join("abcdefgh"[(i * 3 + j) % 8] for j in range(1 + i % 5))} for i in range(num)]


def tiny_trainer(folder: Path, **options: Any) -> SakiTrainer:
    """Two steps of two prompts with two completions each, a checkpoint after each; ``opd`` unless options say so."""
    args = SakiConfig(
        output_dir=str(folder),
        **{
            "method": "opd",
            "max_steps": 2,
            "prompts_per_step": 2,
            "num_generations": 2,
            "per_device_train_batch_size": 4,
            "max_completion_length": 6,
            "save_steps": 1,
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            **options,
        },
    )
    student, teacher = tiny_pair()
    return SakiTrainer(student, teacher, args, tiny_rows(4), processing_class=tiny_tokenizer())


def logprobs_of(targets: torch.Tensor) -> Any:
    """A reader for ``PolicyHead.read``: log-probs of ids [N, M], M for each position."""

    def read(logits: torch.Tensor, which: slice) -> torch.Tensor:
        return torch.log_softmax(logits, dim=-1).gather(-1, targets[which])

    return read
