"""Losses, routing and schedules."""

from saki.objectives.advantages import (
    extrapolated_advantage,
    mean_log_ratio,
    power_advantage,
)
from saki.objectives.losses import (
    clamp_advantage,
    log_ratio_advantage,
    reverse_kl_loss,
    teacher_mode_loss,
    weighted_mode_loss,
)
from saki.objectives.routing import (
    route_by_entropy,
    route_by_preference,
    route_by_tv,
    route_corrections,
    route_lowest,
    route_randomly,
    route_to_first,
)
from saki.objectives.schedules import SCHEDULES, constant, cosine_anneal, linear_anneal, radius_schedule
from saki.objectives.targets import NO_FACTS, Fact, StepFact, TokenFacts, TokenTargets

__all__ = [
    "NO_FACTS",
    "SCHEDULES",
    "Fact",
    "StepFact",
    "TokenFacts",
    "TokenTargets",
    "clamp_advantage",
    "constant",
    "cosine_anneal",
    "extrapolated_advantage",
    "linear_anneal",
    "log_ratio_advantage",
    "mean_log_ratio",
    "power_advantage",
    "radius_schedule",
    "reverse_kl_loss",
    "route_by_entropy",
    "route_by_preference",
    "route_by_tv",
    "route_corrections",
    "route_lowest",
    "route_randomly",
    "route_to_first",
    "teacher_mode_loss",
    "weighted_mode_loss",
]
