"""Distillation methods: frozen records in one registry."""

from saki.methods.branches import (
    REVERSE_KL,
    TEACHER_MODE,
    TEACHER_SAMPLE,
    WEIGHTED_TEACHER_MODE,
    extrapolated,
    fixed,
    policy_gradient,
    power,
)
from saki.methods.paper import OPD, SAKI, TRB
from saki.methods.record import Branch, Method, VocabularyBranch
from saki.methods.registry import UnknownMethodError, get_method, method_names, method_options, register_method
from saki.methods.vocabulary import (
    CENTERED_REVERSE_KL,
    COUPLED_KL,
    FULL_FORWARD_KL,
    FULL_REVERSE_KL,
    reverse_and_forward_kl,
    truncated_forward_kl,
)

__all__ = [
    "CENTERED_REVERSE_KL",
    "COUPLED_KL",
    "FULL_FORWARD_KL",
    "FULL_REVERSE_KL",
    "OPD",
    "REVERSE_KL",
    "SAKI",
    "TEACHER_MODE",
    "TEACHER_SAMPLE",
    "TRB",
    "WEIGHTED_TEACHER_MODE",
    "Branch",
    "Method",
    "UnknownMethodError",
    "VocabularyBranch",
    "extrapolated",
    "fixed",
    "get_method",
    "method_names",
    "method_options",
    "policy_gradient",
    "power",
    "register_method",
    "reverse_and_forward_kl",
    "truncated_forward_kl",
]
