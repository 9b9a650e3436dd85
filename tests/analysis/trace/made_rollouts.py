"""Rollouts and a tokenizer made in code, with every kind of token that a page must show."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from saki.analysis.trace.vocabulary import _byte_alphabet
from saki.rollout import write_rollouts
from saki.types import RolloutBatch

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!-- & 'q' ${x} `y`"
EURO = "\N{EURO SIGN}".encode()
PIECES = (
    b"<pad>",
    b"the",
    b" cat",
    b" sat",
    b" on",
    b" mat",
    b".\n",
    b"\t",
    HOSTILE.encode(),
    EURO[:2],
    EURO[2:],
    b"\x1b[31m",
    "\N{RIGHT-TO-LEFT OVERRIDE}txet".encode(),
    b"  ",
    b"\x00",
    *(f" word{n}".encode() for n in range(50)),
)
(PAD, THE, CAT, SAT, ON, MAT, STOP_LINE, TAB, HOSTILE_ID, EURO_HEAD, EURO_TAIL, ESCAPE, OVERRIDE, SPACES, NUL) = range(
    15
)
END = len(PIECES)


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """One token a piece, as byte-level tokenizers write them, and an end token."""
    letters = {byte: char for char, byte in _byte_alphabet().items()}
    vocabulary = {"".join(letters[byte] for byte in piece): index for index, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def batch_of(
    completions: list[list[int]],
    *,
    corrections: dict[tuple[int, int], int] | None = None,
    seed: int = 0,
    finish: list[str] | None = None,
    scored: bool = True,
) -> RolloutBatch:
    """Completions with made-up numbers.

    Args:
        completions: Committed ids.
        corrections: (row, position) of corrections to the proposal rejected there.
        seed: Of the numbers.
        finish: Reasons, ``stop`` if None.
        scored: Whether the teacher's columns hold anything.
    """
    rows, width = len(completions), max(len(ids) for ids in completions)
    generator = np.random.default_rng(seed)
    ids = torch.full((rows, width), -1)
    for row, found in enumerate(completions):
        ids[row, : len(found)] = torch.tensor(found)
    mask = ids >= 0
    proposals, corrected = ids.clone(), torch.zeros_like(mask)
    for (row, position), proposal in (corrections or {}).items():
        proposals[row, position], corrected[row, position] = proposal, True

    def real(low: float, high: float) -> torch.Tensor:
        values = torch.from_numpy(generator.uniform(low, high, ids.shape).astype(np.float32))
        return values.masked_fill(~mask, float("nan"))

    nothing = torch.full(ids.shape, float("nan"))
    return RolloutBatch(
        prompt_ids=torch.tensor([[-1, THE, CAT], [THE, HOSTILE_ID, SAT]])[torch.arange(rows) % 2],
        prompt_mask=torch.tensor([[False, True, True], [True, True, True]])[torch.arange(rows) % 2],
        completion_ids=ids,
        response_mask=mask,
        proposal_ids=proposals,
        correction_mask=corrected,
        student_logprobs=real(-6, 0),
        behavior_logprobs=real(-6, 0),
        teacher_logprobs=real(-6, 0) if scored else nothing,
        teacher_mode_ids=torch.where(mask, torch.full_like(ids, MAT), -1) if scored else torch.full_like(ids, -1),
        beta=real(0, 1),
        kl=real(0, 0.02),
        tv=real(0, 0.1),
        acceptance_probability=real(0.5, 1),
        prompt_keys=torch.arange(rows) // 2,
        sample_indices=torch.arange(rows) % 2,
        finish_reasons=tuple(finish or ["stop"] * rows),
        student_version=3,
        trust_region_radius=0.02,
        seed=2**64 - 1,
    )


def write_step(folder: Path, step: int, batch: RolloutBatch, method: str = "saki") -> Path:
    """A file as training writes it."""
    path = folder / "rollouts" / f"step-{step:06d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rollouts(path, batch, {"method": method, "step": str(step)})
    return path


def long_batch(*, rows: int, length: int, rate: float, seed: int = 0) -> RolloutBatch:
    """Completions of random words in lines of about twenty, a share of them corrections."""
    generator = np.random.default_rng(seed)
    words = np.array([THE, CAT, SAT, ON, MAT, *range(NUL + 1, END)])
    ids = words[generator.integers(0, len(words), (rows, length))]
    ids[:, 19::20] = STOP_LINE
    found = zip(*np.nonzero(generator.random(ids.shape) < rate), strict=True)
    corrections = {(int(row), int(t)): int(words[(row + t) % len(words)]) for row, t in found}
    return batch_of(ids.tolist(), corrections=corrections, seed=seed)


def page_facts(page: Path) -> dict[str, Any]:
    """What a trace page holds, read as its script does."""
    packed = page.read_text().split('id="payload">')[1].split("<")[0]
    content = gzip.decompress(base64.b64decode(packed))
    facts: dict[str, Any] = json.loads(content[4 : 4 + int.from_bytes(content[:4], "little")])
    return facts
