"""What can go wrong, by whose fault it is."""

from __future__ import annotations


class LoadError(Exception):
    """The engine could not start. The text is one plain line, made for the operator."""


class PortTakenError(Exception):
    """Something listens there already. The text is one plain line, made for the operator."""


class RequestError(Exception):
    """A request that cannot be served as it stands. The text says what is wrong, `param` where."""

    def __init__(self, message: str, *, code: str = "invalid_request", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class JobCancelledError(Exception):
    """Nobody waits for this answer any more: the client left, or the worker stops."""


class EngineFailedError(Exception):
    """The engine raised something that is not the request's fault; the log has the details."""
