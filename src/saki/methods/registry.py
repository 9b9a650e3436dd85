"""The one registry of methods."""

from __future__ import annotations

import difflib
import importlib

from saki.methods.paper import OPD, SAKI, TRB
from saki.methods.record import Method

_METHODS: dict[str, Method] = {method.name: method for method in (OPD, TRB, SAKI)}


class UnknownMethodError(ValueError):
    """No method of that name."""


def register_method(method: Method) -> Method:
    """Add a method, for use by name from configs and the command line.

    Raises:
        ValueError: If the name is taken by another record.
    """
    if _METHODS.setdefault(method.name, method) is not method:
        raise ValueError(f"a method named {method.name!r} is registered already; choose another name")
    return method


def method_names() -> tuple[str, ...]:
    """Registered names, in order of registration."""
    return tuple(_METHODS)


def get_method(name: str) -> Method:
    """A method by registered name, or by ``package.module:attribute`` from the user's own code.

    Raises:
        UnknownMethodError: If there is none; the message names the nearest.
    """
    if not isinstance(name, str):
        raise UnknownMethodError(f"a method is named by text, got {name!r} ({type(name).__name__})")
    if name in _METHODS:
        return _METHODS[name]
    if ":" in name:
        return _imported(name)
    nearest = difflib.get_close_matches(name, _METHODS, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose one of {', '.join(_METHODS)}"
    raise UnknownMethodError(f"unknown method {name!r}; {hint}")


def _imported(name: str) -> Method:
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or not attribute.isidentifier():
        raise UnknownMethodError(f"{name!r} names no method; write it as package.module:ATTRIBUTE")
    try:
        method = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the user's module is run here, and may fail in any way
        raise UnknownMethodError(
            f"cannot import method {name!r} ({type(error).__name__}: {error}); check the module and the Python path"
        ) from error
    if not isinstance(method, Method):
        raise UnknownMethodError(f"{name!r} is a {type(method).__name__}, expected a saki.methods.Method")
    return method
