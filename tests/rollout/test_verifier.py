"""One block: where it stops, what is flagged, what the metadata says."""

import pytest
import torch

from saki.functional import RowKeys, Stream, bridge_log_ratio, keyed_uniforms, solve_bridge
from saki.functional.numerics import normalized_log_probs
from saki.rollout.verifier import verify_block

ROWS, WIDTH, VOCAB, RADIUS = 400, 5, 6, 0.3


@pytest.fixture(scope="module")
def block():
    generator = torch.Generator().manual_seed(0)
    log_p = normalized_log_probs(torch.randn(ROWS, WIDTH, VOCAB, generator=generator).double() * 2)
    log_t = normalized_log_probs(torch.randn(ROWS, WIDTH, VOCAB, generator=generator).double() * 2)
    proposals = torch.distributions.Categorical(logits=log_p).sample()
    keys = RowKeys(3, torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.long))
    positions = torch.arange(WIDTH).expand(ROWS, -1) + 7
    return log_p, log_t, proposals, keys, positions


def test_a_block_stops_at_its_first_rejection(block):
    log_p, log_t, proposals, keys, positions = block
    verified = verify_block(log_p, log_t, proposals, keys, positions, RADIUS)
    bridge = solve_bridge(log_p, log_t, RADIUS)
    u = bridge_log_ratio(log_p, log_t, bridge.beta, bridge.log_partition)
    uniforms = keyed_uniforms(keys, positions, Stream.ACCEPT).squeeze(-1)
    seen = set()
    for row in range(ROWS):
        threshold = u[row, torch.arange(WIDTH), proposals[row]].clamp(max=0).exp()
        rejected = torch.nonzero(uniforms[row] >= threshold).flatten().tolist()
        count = rejected[0] + 1 if rejected else WIDTH
        seen.add(count if rejected else 0)
        assert int(verified.counts[row]) == count
        flags = [i == count - 1 and bool(rejected) for i in range(count)]
        assert verified.corrections[row, :count].tolist() == flags
        expected = proposals[row, :count].tolist()
        if rejected:
            token = int(verified.tokens[row, count - 1])
            assert float(u[row, count - 1, token]) > 0  # the residual lives where q > p (Eq. 46)
            expected[-1] = token
        assert verified.tokens[row, :count].tolist() == expected
    assert seen == set(range(WIDTH + 1))  # every stopping place, and no stop at all, came up


def test_decisions_never_read_later_positions(block):
    log_p, log_t, proposals, keys, positions = block
    whole = verify_block(log_p, log_t, proposals, keys, positions, RADIUS)
    for width in range(1, WIDTH):
        part = verify_block(
            log_p[:, :width], log_t[:, :width], proposals[:, :width], keys, positions[:, :width], RADIUS
        )
        assert torch.equal(part.counts, whole.counts.clamp(max=width))
        for row in range(ROWS):
            n = int(part.counts[row])
            assert torch.equal(part.tokens[row, :n], whole.tokens[row, :n])
            assert torch.equal(part.corrections[row, :n], whole.corrections[row, :n])


def test_a_rejection_without_residual_weight_keeps_the_proposal(monkeypatch, block):
    from saki.rollout import verifier

    log_p, log_t, proposals, keys, positions = block
    monkeypatch.setattr(
        verifier, "draw_residual", lambda p, *_: (torch.zeros(len(p), dtype=torch.long), torch.zeros(len(p)).bool())
    )
    verified = verify_block(log_p, log_t, proposals, keys, positions, RADIUS)
    assert torch.equal(verified.tokens, proposals)
    assert not verified.corrections.any()
    assert verified.num_empty_residuals > 0


def test_nan_at_the_decision_marks_the_row_and_nan_behind_it_does_not(block):
    log_p, log_t, proposals, keys, positions = (value.clone() if torch.is_tensor(value) else value for value in block)
    clean = verify_block(log_p, log_t, proposals, keys, positions, RADIUS)
    log_t[:, 2] = torch.nan
    verified = verify_block(log_p, log_t, proposals, keys, positions, RADIUS)
    reached = clean.counts > 2
    assert torch.equal(verified.broken, reached)
    assert (verified.counts[reached] == 2).all()
    assert torch.equal(verified.counts[~reached], clean.counts[~reached])
