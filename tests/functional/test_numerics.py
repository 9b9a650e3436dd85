"""Log-space arithmetic at the edges."""

import math

import pytest
import torch

from saki.functional.numerics import normalized_log_probs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_any_precision_defines_one_exact_law(dtype):
    logits = (torch.arange(6.0) * 1.7 - 3).to(dtype)
    log_p = normalized_log_probs(logits)
    double = dtype == torch.float64
    assert log_p.dtype == (torch.float64 if double else torch.float32)
    assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-15 if double else 1e-6)
    exact = logits.double() - logits.double()[0]
    assert torch.allclose((log_p - log_p[0]).double(), exact, atol=1e-14 if double else 1e-6)


def test_impossible_tokens_and_broken_rows():
    log_p = normalized_log_probs(torch.tensor([[0.0, -torch.inf, 0.0], [0.0, torch.nan, 1.0]]))
    assert log_p[0].tolist() == pytest.approx([math.log(0.5), -math.inf, math.log(0.5)])
    assert torch.isnan(log_p[1]).all()
