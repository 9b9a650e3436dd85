"""Objects of a user's own, named as ``package.module:ATTRIBUTE``."""

from __future__ import annotations

import importlib
from typing import TypeVar

Kind = TypeVar("Kind")


def import_named(name: str, kind: type[Kind], noun: str, path: str, error: type[ValueError]) -> Kind:
    """Import what a name of the form ``package.module:ATTRIBUTE`` means.

    Args:
        name: The name.
        kind: What it must be an instance of.
        noun: What it is, for messages.
        path: Where ``kind`` is found, for messages.
        error: What is raised.

    Raises:
        ValueError: As ``error``, if the name has another form, cannot be imported or is something else.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or not attribute.isidentifier():
        raise error(f"{name!r} names no {noun}; write it as package.module:ATTRIBUTE")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except Exception as cause:  # the user's module is run here, and may fail in any way
        raise error(
            f"cannot import {noun} {name!r} ({type(cause).__name__}: {cause}); check the module and the Python path"
        ) from cause
    if not isinstance(found, kind):
        raise error(f"{name!r} is a {type(found).__name__}, expected a {path}")
    return found
