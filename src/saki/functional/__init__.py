"""The mathematics of saki: stateless functions on log-probabilities (torch only)."""

from saki.functional.bisection import solve_bridge_bisection
from saki.functional.bridge import Bridge, bridge_log_ratio, solve_bridge
from saki.functional.coupling import (
    accept_proposals,
    acceptance_probability,
    draw_residual,
    residual_log_weights,
    screen_proposals,
)
from saki.functional.divergences import entropy, kl_divergence, pinsker_bound, total_variation, truncated_kl
from saki.functional.numerics import normalized_log_probs
from saki.functional.random import RowKeys, Stream, keyed_uniforms, philox4x32, request_seed
from saki.functional.sampling import (
    draw_proposals,
    draw_teacher_samples,
    exponential_race,
    inverse_cdf,
    proposal_uniforms,
)

__all__ = [
    "Bridge",
    "RowKeys",
    "Stream",
    "accept_proposals",
    "acceptance_probability",
    "bridge_log_ratio",
    "draw_proposals",
    "draw_residual",
    "draw_teacher_samples",
    "entropy",
    "exponential_race",
    "inverse_cdf",
    "keyed_uniforms",
    "kl_divergence",
    "normalized_log_probs",
    "philox4x32",
    "pinsker_bound",
    "proposal_uniforms",
    "request_seed",
    "residual_log_weights",
    "screen_proposals",
    "solve_bridge",
    "solve_bridge_bisection",
    "total_variation",
    "truncated_kl",
]
