"""The worker's errors, by whose fault they are."""

from __future__ import annotations


class LoadError(Exception):
    """The engine could not start. The message is one plain line for the operator."""


class PortTakenError(Exception):
    """Another process listens on the port. The message is one plain line for the operator."""


class RequestError(Exception):
    """A request that cannot be served as it is. The message says what is wrong, `param` names the field."""

    def __init__(self, message: str, *, code: str = "invalid_request", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class JobCancelledError(Exception):
    """The answer is no longer wanted: the client left, or the worker stops."""


class EngineFailedError(Exception):
    """The engine raised an error that is not the request's fault; the log has the details."""
