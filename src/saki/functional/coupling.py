"""Maximal coupling of the student p and the bridge q (Eq. 3-7, Appendices G and H)."""

from __future__ import annotations

import torch
from torch import Tensor

from saki.functional.random import RowKeys, Stream
from saki.functional.sampling import draw, uniforms_of_draw


def acceptance_probability(log_ratio: Tensor) -> Tensor:
    """min(1, q(z)/p(z)) from u = log q(z)/p(z) (Eq. 4, 83)."""
    return log_ratio.clamp(max=0.0).exp()


def accept_proposals(log_ratio: Tensor, uniforms: Tensor) -> Tensor:
    """Accept z when log U < min(0, u(z)), strictly, so that q(z) = 0 can never pass (Eq. 4, 37).

    Args:
        log_ratio: [...] float64, u(z) = log q(z)/p(z).
        uniforms: [...] float64 in (0, 1), at 53-bit resolution: float32 uniforms step by 6e-8.

    Returns:
        [...] bool, True where the proposal is kept. A NaN rejects.
    """
    return uniforms.log() < log_ratio.clamp(max=0.0)


def screen_proposals(log_p: Tensor, log_t: Tensor, uniforms: Tensor) -> Tensor:
    """Acceptances that hold for every beta: log U < min(0, log T(z)/p(z)).

    f(b) = log q_b(z)/p(z) is concave with f(0) = 0 and f(1) >= log T(z)/p(z), so the bridge never lies below
    the smaller of the two. What this accepts, ``accept_proposals`` accepts as well.

    Args:
        log_p: [...] log p(z).
        log_t: [...] log T(z).
        uniforms: [...] the same uniforms that ``accept_proposals`` would get.
    """
    return uniforms.log() < (log_t - log_p).clamp(max=0.0)


def residual_log_weights(log_p: Tensor, log_ratio: Tensor) -> Tensor:
    """log [q - p]+ = log p + log expm1(u) where u > 0, else -inf (Eq. 6, 46).

    Args:
        log_p: [..., V] student log-probs.
        log_ratio: [..., V] u = log q/p, the same as in the acceptance test.
    """
    positive = (log_ratio > 0) & (log_p > -torch.inf)
    safe = torch.where(positive, log_ratio, torch.ones_like(log_ratio))
    # expm1 overflows above 709; there log expm1(u) = u to all digits.
    log_gain = torch.where(safe > 30.0, safe, torch.expm1(safe.clamp(max=30.0)).log())
    return torch.where(positive, log_p + log_gain, -torch.inf)


def draw_residual(log_p: Tensor, log_ratio: Tensor, keys: RowKeys, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a correction from the residual [q - p]+, without normalising it (Eq. 6-7).

    Args:
        log_p: [R, V] student log-probs.
        log_ratio: [R, V] u = log q/p.
        keys: Identity of the R rows.
        positions: [R] absolute response positions.

    Returns:
        Token ids [R], and [R] bool: False where no weight is positive (then the proposal must stand).
    """
    weights = residual_log_weights(log_p, log_ratio)
    uniforms = uniforms_of_draw(keys, positions, Stream.RESIDUAL, weights.shape[-1])
    return draw(weights, uniforms), weights.amax(dim=-1) > -torch.inf
