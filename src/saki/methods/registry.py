"""The one registry of methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from saki.methods import beyond, paper
from saki.methods.record import Method
from saki.types.exact import did_you_mean
from saki.types.imports import import_named

Builder = Callable[..., Method]
"""Makes a record from options, each a keyword argument with a default."""

_METHODS: dict[str, Method] = {}
_BUILDERS: dict[str, Builder] = {}


class UnknownMethodError(ValueError):
    """No method of that name, or no such option of it."""


def register_method(method: Method, builder: Builder | None = None) -> Method:
    """Add a method, for use by name from configs and the command line.

    Args:
        method: The record, with the options' defaults.
        builder: Makes the record from options, for a method that has some.

    Raises:
        ValueError: If the name is taken by another record.
    """
    if _METHODS.setdefault(method.name, method) is not method:
        raise ValueError(f"a method named {method.name!r} is registered already; choose another name")
    if builder is not None:
        _BUILDERS[method.name] = builder
    return method


def method_names() -> tuple[str, ...]:
    """Registered names, in order of registration."""
    return tuple(_METHODS)


def method_options(name: str) -> dict[str, Any]:
    """Options of a registered method with their defaults."""
    return _defaults(_BUILDERS[name]) if name in _BUILDERS else {}


def _defaults(builder: Builder) -> dict[str, Any]:
    return {key: each.default for key, each in inspect.signature(builder).parameters.items()}


def get_method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """A method by registered name, or by ``package.module:attribute`` from the user's own code.

    Args:
        name: The name.
        options: Values for some of the method's options.

    Raises:
        UnknownMethodError: If there is no such method or option; the message names the nearest.
        ValueError: If an option's value has the wrong type or is out of range.
    """
    if not isinstance(name, str):
        raise UnknownMethodError(f"a method is named by text, got {name!r} ({type(name).__name__})")
    if name not in _METHODS and ":" in name:
        method = import_named(name, Method, "method", "saki.methods.Method", UnknownMethodError)
    elif name in _METHODS:
        method = _METHODS[name]
    else:
        hint = did_you_mean(name, _METHODS, f"choose one of {', '.join(_METHODS)}")
        raise UnknownMethodError(f"unknown method {name!r}; {hint}")
    if not options:
        return method
    return _built(name, options)


def _built(name: str, options: Mapping[str, Any]) -> Method:
    defaults = method_options(name)
    values = dict(defaults)
    for key, value in options.items():
        if key not in defaults:
            hint = did_you_mean(key, defaults, f"it has {', '.join(defaults) or 'none'}", cutoff=0.4)
            raise UnknownMethodError(f"method {name!r} has no option {key!r}; {hint}")
        values[key] = _checked(name, key, value, defaults[key])
    return _with_options(_BUILDERS[name](**values), values)


def _checked(method: str, key: str, value: Any, default: Any) -> Any:
    """The value in the default's type; an option whose default is None takes numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = float if default is None else type(default)
    if kind is float and is_number:
        return float(value)
    if value is None and default is None:
        return None
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ValueError(f"option {key!r} of method {method!r} must be of type {kind.__name__}, got {value!r}")


def _with_options(method: Method, values: Mapping[str, Any]) -> Method:
    return replace(method, options=tuple(values.items()))


def _register_builder(builder: Builder, default: Method | None = None) -> None:
    register_method(default or _with_options(builder(), _defaults(builder)), builder)


register_method(paper.OPD)
_register_builder(paper.exopd)
_register_builder(paper.skd)
register_method(paper.TRB)
register_method(paper.RANDOM_TM)
register_method(paper.TV_WEIGHTED_TM)
register_method(paper.TEACHER_SAMPLED)
_register_builder(paper.saki, paper.SAKI)
register_method(beyond.OPD_FULL)
register_method(beyond.TRB_FULL)
register_method(beyond.SAKI_RKL_FULL)
register_method(beyond.SAKI_WEIGHTED)
register_method(beyond.SAKI_FULL)
register_method(beyond.FULL_COUPLED)
register_method(beyond.VOPD)
_register_builder(beyond.power_opd)
_register_builder(beyond.aopd)
_register_builder(beyond.entropy_aware)
_register_builder(beyond.opsa)
