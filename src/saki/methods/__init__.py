"""Distillation methods: frozen records in one registry."""

from saki.methods.branches import (
    REVERSE_KL,
    TEACHER_MODE,
    TEACHER_SAMPLE,
    WEIGHTED_TEACHER_MODE,
    extrapolated,
    low_probability,
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
    REVERSE_AND_FORWARD_KL,
)

__all__ = [
    "CENTERED_REVERSE_KL",
    "COUPLED_KL",
    "FULL_FORWARD_KL",
    "FULL_REVERSE_KL",
    "OPD",
    "REVERSE_AND_FORWARD_KL",
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
    "get_method",
    "low_probability",
    "method_names",
    "method_options",
    "policy_gradient",
    "power",
    "register_method",
]
