"""Rejections that happen once in a billion tokens, seen by conditioning: only draws near 1 are looked at."""

from __future__ import annotations

import math

import pytest
import torch

from saki.functional import RowKeys, Stream, accept_proposals, keyed_uniforms, random

TOP_BITS = 26
"""Draws are taken given that their highest 26 bits are ones, which happens at a rate of 1.5e-8."""

NUM_DRAWS = 20_000
SIGMAS = 5.0


def rejects_at_the_right_rate() -> bool:
    """Whether accept_proposals rejects at log q/p = log(1 - 2**-28), and at 2**-30, as often as it must (five sigma).

    A rejection means U > 1 - 2**-28. Given that U > 1 - 2**-26, that happens with probability 1/4 (and 1/16).
    """
    philox = random.philox4x32

    def conditioned(counter, key):
        high, *rest = philox(counter, key)
        return (high | ((1 << TOP_BITS) - 1) << (32 - TOP_BITS), *rest)

    keys = RowKeys(3, torch.arange(NUM_DRAWS), torch.zeros(NUM_DRAWS, dtype=torch.long))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "philox4x32", conditioned)
        uniforms = keyed_uniforms(keys, torch.zeros(NUM_DRAWS, dtype=torch.long), Stream.ACCEPT).squeeze(-1)
    if not bool((uniforms < 1).all()):
        return False
    for bits in (28, 30):
        log_ratio = torch.full_like(uniforms, math.log1p(-(2.0**-bits)))
        rate = 2.0 ** (TOP_BITS - bits)
        excess = int((~accept_proposals(log_ratio, uniforms)).sum()) - NUM_DRAWS * rate
        if abs(excess) > SIGMAS * math.sqrt(NUM_DRAWS * rate * (1 - rate)):
            return False
    return True
