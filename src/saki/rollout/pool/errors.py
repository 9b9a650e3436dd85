"""What can go wrong in a pool of replicas."""

from __future__ import annotations


class PoolError(RuntimeError):
    """The pool cannot go on; its replicas are gone when this reaches the caller."""


class ReplicaLostError(PoolError):
    """A replica's process ended, or stopped answering."""


class TooManyFailuresError(PoolError):
    """More replicas failed than the pool was told to bear."""


class ClosedPoolError(PoolError):
    """The pool was closed, by its owner or after an error."""
