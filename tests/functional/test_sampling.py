"""Both keyed draws follow their law, ignore zeros, and sit still under the batch."""

import math

import pytest
import torch

from saki.functional import RowKeys, draw_proposals, exponential_race, inverse_cdf, proposal_uniforms, sampling

LAW = torch.tensor([0.0, 0.4, 0.0, 0.35, 0.2, 0.05, 0.0], dtype=torch.float64)


def rows(num):
    return RowKeys(5, torch.arange(num), torch.ones(num, dtype=torch.long)), torch.full((num,), 3)


def noise(keys, positions, vocab):
    return proposal_uniforms(keys, positions.unsqueeze(1), vocab)[:, 0]


@pytest.mark.parametrize("threshold", [512, 0], ids=["race", "inverse_cdf"])
def test_frequencies(monkeypatch, threshold):
    monkeypatch.setattr(sampling, "RACE_MAX_VOCAB", threshold)
    num = 100_000
    keys, positions = rows(num)
    counts = torch.bincount(draw_proposals(LAW.log().expand(num, -1), noise(keys, positions, 7)), minlength=7).double()
    assert counts[LAW == 0].sum() == 0
    used = LAW > 0
    statistic = float(((counts - num * LAW)[used] ** 2 / (num * LAW)[used]).sum())
    assert statistic < 30.7  # chi-square, 3 degrees of freedom, alpha = 1e-6


def test_inverse_cdf_edges():
    law = torch.tensor([0.0, 0.25, 0.75, 0.0], dtype=torch.float64).log().expand(3, -1)
    uniforms = torch.tensor([2.0**-53, 0.25, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse_cdf(law, uniforms).tolist() == [1, 2, 2]


def test_race_prefers_any_finite_weight():
    weights = torch.tensor([-torch.inf, -1000.0, -torch.inf], dtype=torch.float64)
    assert int(exponential_race(weights, torch.full((3,), 0.5, dtype=torch.float64))) == 1


def test_large_vocabularies_use_the_inverse_cdf_and_agree_in_law():
    vocab, num = 1000, 20_000
    log_p = torch.log_softmax(torch.linspace(0, 5, vocab, dtype=torch.float64), dim=-1)
    keys, positions = rows(num)
    draws = draw_proposals(log_p.expand(num, -1), noise(keys, positions, vocab))
    mean = float((log_p.exp() * torch.arange(vocab)).sum())
    spread = float((log_p.exp() * (torch.arange(vocab) - mean) ** 2).sum()) ** 0.5
    assert abs(float(draws.double().mean()) - mean) < 5 * spread / math.sqrt(num)
