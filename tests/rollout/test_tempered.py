"""Another temperature, and none."""

from __future__ import annotations

import pytest
import torch

from saki.lab import student_path
from saki.models import load_causal_lm
from saki.rollout import HFDecoder, TemperedDecoder


def logits(decoder):
    tokens = torch.tensor([[5, 6, 7]])
    return decoder.forward(tokens, torch.zeros(1, dtype=torch.long), decoder.new_cache(1, 3), 3, 3)


def model():
    return load_causal_lm(str(student_path()), dtype=torch.float32)


def test_logits_are_divided_by_the_temperature():
    plain = logits(HFDecoder(model(), 36))
    assert torch.equal(logits(TemperedDecoder(model(), 36, 1.0)), plain)
    assert torch.allclose(logits(TemperedDecoder(model(), 36, 0.5)), plain * 2)


def test_at_zero_the_most_likely_token_is_certain():
    plain, certain = logits(HFDecoder(model(), 36)), logits(TemperedDecoder(model(), 36, 0.0))
    assert torch.equal(certain.softmax(dim=-1), torch.nn.functional.one_hot(plain.argmax(dim=-1), 36).float())


def test_a_row_of_nan_stays_one():
    broken = model()
    with torch.no_grad():
        broken.get_input_embeddings().weight.fill_(float("nan"))
    assert logits(TemperedDecoder(broken, 36, 0.0)).isnan().all()


def test_negative_temperatures_are_refused():
    with pytest.raises(ValueError, match="temperature must be at least 0"):
        TemperedDecoder(model(), 36, -1.0)
