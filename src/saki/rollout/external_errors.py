"""What can go wrong between the coordinator and the model servers of the external loop."""

from __future__ import annotations


class ExternalError(RuntimeError):
    """The external loop cannot go on; its servers and connections are closed when this reaches the caller."""


class ServerStartError(ExternalError):
    """A model server did not start."""


class ServerDiedError(ExternalError):
    """The other side closed the connection or its process ended."""


class RequestTimeoutError(ExternalError):
    """The other side did not answer within the time-out."""


class AccessDeniedError(ExternalError):
    """The other side refused the token."""


class ForeignBytesError(ExternalError):
    """What came is no frame of this protocol: magic, version, checksum or descriptor are wrong."""


class TruncatedFrameError(ExternalError):
    """The connection ended inside a frame."""


class OversizedFrameError(ExternalError):
    """A frame announces more bytes than its request can have for an answer."""


class RemoteError(ExternalError):
    """A server could not carry out a request."""


class ClosedLoopError(ExternalError):
    """The external loop was closed, by its owner or after an error."""
