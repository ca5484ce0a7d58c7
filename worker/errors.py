"""The worker's errors, by whose fault they are."""

from __future__ import annotations


class LoadError(Exception):
    """The engine could not start. The message is one plain line for the operator, which the worker prints last before
    it exits with code 1."""


class PortTakenError(Exception):
    """Another process listens on the port. The message is one plain line for the operator, which the worker prints last
    before it exits with code 3."""


class RequestError(Exception):
    """A request that cannot be served as it is: HTTP status 400, or 501 with the code `not_supported`. The message says
    what is wrong, `code` is OpenAI's error code, `param` names the request's field; None: no single field."""

    def __init__(self, message: str, *, code: str = "invalid_request", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class JobCancelledError(Exception):
    """The answer is no longer wanted: the client left, or the worker stops. Engines raise it through
    `Job.check_cancelled`; a client that is still there gets HTTP status 503."""


class EngineFailedError(Exception):
    """The engine raised an error, or gave what is no answer, and it is not the request's fault. The client gets the
    message, with HTTP status 500."""
