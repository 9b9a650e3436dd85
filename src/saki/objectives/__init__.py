"""Losses, routing and schedules."""

from saki.objectives.losses import TokenTargets, log_ratio_advantage, reverse_kl_loss, teacher_mode_loss
from saki.objectives.routing import route_corrections, route_to_first
from saki.objectives.schedules import constant, linear_anneal

__all__ = [
    "TokenTargets",
    "constant",
    "linear_anneal",
    "log_ratio_advantage",
    "reverse_kl_loss",
    "route_corrections",
    "route_to_first",
    "teacher_mode_loss",
]
