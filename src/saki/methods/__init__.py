"""Distillation methods: frozen records in one registry."""

from saki.methods.branches import REVERSE_KL, TEACHER_MODE
from saki.methods.paper import OPD, SAKI, TRB
from saki.methods.record import Branch, Method
from saki.methods.registry import UnknownMethodError, get_method, method_names, register_method

__all__ = [
    "OPD",
    "REVERSE_KL",
    "SAKI",
    "TEACHER_MODE",
    "TRB",
    "Branch",
    "Method",
    "UnknownMethodError",
    "get_method",
    "method_names",
    "register_method",
]
