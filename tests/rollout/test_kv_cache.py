"""Slabs against plain forwards: ragged rows, roll-backs, dropped rows, any chunking.

How close is close enough is measured, not set. In float32 and bfloat16 the truth is the same weights in float64; a
decode through slabs may miss it by no more than twice what a plain forward of the same dtype misses it by. In float64
both must agree to the rounding of float64, but for the few places where a layer of the library rounds to float32 (norms
of most families do): there one entry may fall to the other side of a float32 step, and the rest moves by that step.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
import transformers
from transformers import AutoConfig

from saki.models import UnsupportedArchitectureError
from saki.rollout import HFDecoder
from saki.rollout import decoder as decoder_module
from saki.rollout.kv_cache import SlabCache

VOCAB, SLOTS, BLOCK, ROUNDS = 19, 40, 4, 30
LENGTHS = (1, 4, 7, 2, 12)
"""Rows start at differing positions; some are within a sliding window, one beyond it."""

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "qwen3": {"head_dim": 8},
    "llama": {"head_dim": 8},
    "gemma3_text": {
        "head_dim": 8,
        "sliding_window": 5,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "mistral": {"head_dim": 8, "sliding_window": 6},
    "phi3": {},
    "gpt_neox": {},
}


def make_model(family, dtype):
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


def plain_logits(model, texts, block):
    """[rows, BLOCK, V] logits at the block's positions of whole sequences; causal layers never see the padding."""
    sequences = [torch.tensor(text + block[row].tolist()) for row, text in enumerate(texts)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    logits = model(input_ids=ids, use_cache=False).logits.double()
    return torch.stack([logits[row, len(text) : len(text) + BLOCK] for row, text in enumerate(texts)])


@dataclass
class Gaps:
    """Distances in logits over all positions asked for, by check.

    Attributes:
        decode: Slab decode from a plain forward of the same dtype.
        decode_error: Slab decode from the float64 twin.
        plain_error: Plain forward from the float64 twin.
        scale: Largest logit.
    """

    decode: torch.Tensor
    decode_error: torch.Tensor
    plain_error: torch.Tensor
    scale: float


@torch.no_grad()
def play(family, dtype, *, new_cache=None, true_starts=True, rounds=ROUNDS):
    """Rounds of random blocks, commits, roll-backs and dropped rows; every logit of every block is compared.

    Args:
        new_cache: Makes the cache, in place of the decoder's own.
        true_starts: False keeps each row's position where it was: the roll-back is not honoured.
    """
    model = make_model(family, dtype)
    twin = model if dtype == torch.float64 else copy.deepcopy(model).double()
    decoder = HFDecoder(copy.deepcopy(model), VOCAB)
    generator = torch.Generator().manual_seed(0)

    def draw(high, shape, low=0):
        return torch.randint(low, high, shape, generator=generator)

    texts = [draw(VOCAB, (length,)).tolist() for length in LENGTHS]
    cache = (new_cache or decoder.new_cache)(len(texts), SLOTS)
    cache.version = decoder.version
    width = max(LENGTHS)
    padded = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    starts = torch.tensor(LENGTHS)
    for begin in range(0, width, 5):  # prefill in pieces; padding on the right lands above the starts
        piece = padded[:, begin : begin + 5]
        decoder.forward(piece, torch.full_like(starts, begin), cache, begin + piece.shape[1], 1)
    gaps, scale = [], 0.0
    for turn in range(rounds):
        block = draw(VOCAB, (len(texts), BLOCK))
        logits = decoder.forward(block, starts, cache, int(starts.max()) + BLOCK, BLOCK).double()
        plain = plain_logits(model, texts, block)
        exact = plain if twin is model else plain_logits(twin, texts, block)
        pairs = ((logits, plain), (logits, exact), (plain, exact))
        gaps.append(torch.stack([(a - b).abs().amax(dim=(1, 2)) for a, b in pairs], dim=1))
        scale = max(scale, float(exact.abs().max()))
        # Keep a random part of the block, or fall back further, but never below one token.
        change = draw(BLOCK + 1, (len(texts),), low=-4)
        texts = [
            (text + block[row].tolist())[: max(1, min(len(text) + int(change[row]), SLOTS - BLOCK - 1))]
            for row, text in enumerate(texts)
        ]
        true = torch.tensor([len(text) for text in texts])
        starts = true if true_starts else torch.minimum(starts + BLOCK, torch.tensor(SLOTS - BLOCK - 1))
        if turn in (8, 18):  # compaction: a row goes, the others change places
            kept = torch.randperm(len(texts), generator=generator)[:-1]
            cache.keep_rows(kept)
            texts, starts = [texts[int(row)] for row in kept], starts[kept]
    return Gaps(*torch.cat(gaps).unbind(dim=1), scale)


def assert_faithful(gaps, dtype):
    if dtype == torch.float64:
        assert float(gaps.decode.max()) <= 32 * torch.finfo(torch.float32).eps * gaps.scale
        # Layers of the library that stay in float64 leave this much, and most checks meet no float32 step at all.
        assert float(gaps.decode.quantile(0.8)) <= 32 * torch.finfo(torch.float64).eps * gaps.scale
    else:
        # Both errors are rounding of this dtype: a cell of these grids, or the measure would be empty.
        assert torch.finfo(dtype).eps * gaps.scale / 4 < float(gaps.plain_error.max()) < 0.1 * gaps.scale
        assert float(gaps.decode_error.max()) <= 2 * float(gaps.plain_error.max())
        assert float(gaps.decode_error.mean()) <= 1.5 * float(gaps.plain_error.mean())


DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_thirty_rounds_of_commits_and_rollbacks(family, dtype):
    assert_faithful(play(family, dtype), dtype)


class KeepsOldEntries(SlabCache):
    """A slot that was written once keeps its entry: what a roll-back discarded stays."""

    def begin(self, positions, visible):
        super().begin(positions, visible)
        written = self.__dict__.setdefault("written", torch.zeros(self.num_rows * self.num_slots, dtype=torch.bool))
        self.stale = written[self.index]
        written[self.index] = True

    def _write(self, slabs, layer, states):
        if layer < len(slabs):
            old = slabs[layer][self.index].view(states.shape[0], states.shape[2], *states.shape[1::2]).transpose(1, 2)
            states = torch.where(self.stale.view(states.shape[0], 1, -1, 1), old, states)
        return super()._write(slabs, layer, states)


class MovesRowsWrongly(SlabCache):
    """Compaction keeps the first rows, whichever were asked for."""

    def keep_rows(self, rows):
        super().keep_rows(torch.arange(len(rows)))


def stale_cache(rows, slots):
    return KeepsOldEntries(rows, slots, 0)


def shuffled_cache(rows, slots):
    return MovesRowsWrongly(rows, slots, 0)


def everything_visible(positions, visible, window=None):
    """A mask that forgets where each row ends."""
    last = positions.amax().expand_as(positions)
    return (torch.arange(visible) <= last.unsqueeze(-1)).unsqueeze(1)


def no_window(positions, visible, window=None):
    return (torch.arange(visible) <= positions.unsqueeze(-1)).unsqueeze(1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fault", ["old entries", "old positions", "rows", "mask", "window"])
def test_a_stale_cache_is_caught(fault, dtype, monkeypatch):
    """The same check, in every dtype, with a roll-back that is not honoured and its kin."""
    options, rounds = {}, 12
    if fault == "old entries":
        options, rounds = {"new_cache": stale_cache}, 8  # before the first compaction, whose book-keeping it lacks
    elif fault == "old positions":
        options, rounds = {"true_starts": False}, 4  # positions only grow
    elif fault == "rows":
        options = {"new_cache": shuffled_cache}
    assert_faithful(play("mistral", dtype, rounds=rounds), dtype)
    if fault in ("mask", "window"):
        mask = everything_visible if fault == "mask" else no_window
        monkeypatch.setattr(decoder_module, "causal_slab_mask", mask)
    gaps = play("mistral", dtype, rounds=rounds, **options)
    with pytest.raises(AssertionError):
        assert_faithful(gaps, dtype)


def test_soft_caps_are_refused_by_name():
    config = AutoConfig.for_model("gemma2", **SIZES, head_dim=8, sliding_window=5)
    with torch.random.fork_rng(devices=[]):
        model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedArchitectureError, match=r"'gemma2' has a soft cap of 50\.0"):
        HFDecoder(model, VOCAB)


def test_dropped_rows_free_their_memory():
    decoder = HFDecoder(make_model("qwen3", torch.float64), VOCAB)
    cache = decoder.new_cache(3, 8)
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    decoder.forward(tokens, torch.zeros(3, dtype=torch.long), cache, 3, 1)
    size = cache.num_bytes
    cache.keep_rows(torch.tensor([2, 0]))
    assert cache.num_bytes == size * 2 // 3
