"""How questions to a controller fail, in the words of the command line."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import aiohttp
from pydantic import ValidationError

from common.program_client import ProgramGoneError
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.output import one_line
from controller.schema.errors import ErrorBody, ErrorEnvelope

HINTS: Mapping[str, str] = {
    "unknown_model": "`roundhouse status` lists the names.",
    "unknown_replica": "`roundhouse status --json` names the replicas.",
    "unknown_route": "A gateway does not pass this on; leave --controller out, or name the controller's own address.",
    "state_conflict": "`roundhouse status` shows the state; wait until the transition has ended.",
    "invalid_load_request": "",
    "schema_violation": "",
}
"""Error code to what the operator should do first at a command line, where the error's own next step is about HTTP."""
_NAME_MISMATCHES: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


class NoControllerError(CommandError):
    """No controller listens at the address, or none answers in time. A controller that did not answer in time may have
    carried out the request; so may one whose answer broke off (LostControllerError, a subclass). Exit code
    NO_CONTROLLER; `reason` in words."""

    words = "no controller answers at {url} ({reason}); `roundhouse up` starts one"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(self.words.format(url=url, reason=reason), ExitCode.NO_CONTROLLER)
        self.reason = reason


class LostControllerError(NoControllerError):
    """The connection ended, or nothing came any more, before the end of the controller's answer. The controller may
    have carried out the request."""

    words = "the controller at {url} went away before the end of its answer ({reason})"


class RequestRefusedError(CommandError):
    """The controller or a gateway answered with an error. `status`: HTTP status, 400 or above. `body`: the error as the
    answer says it; None: the body was not one of Roundhouse's errors. Exit code FAILED."""

    def __init__(self, status: int, body: ErrorBody | None) -> None:
        super().__init__(f"the controller refused: {_error_words(status, body)}")
        self.status = status
        self.body = body

    @property
    def error_code(self) -> str | None:
        """The error's code as the answer has it (`controller.schema.errors.ERROR_CODES` lists the controller's); None
        where `body` is None."""
        return self.body.code if self.body is not None else None


@contextmanager
def translate_failures(url: str, within_s: float) -> Iterator[None]:
    """Context manager that raises a CommandError in place of ProgramGoneError and TimeoutError in the block; other
    errors pass.

    NoControllerError: nobody answers, or not in time. LostControllerError: the connection ended, or was silent too
    long. Plain CommandError: TLS failed. `within_s`: the seconds that the requests were given, for the message.
    """
    try:
        yield
    except ProgramGoneError as gone:
        raise _explain_failure(url, within_s, gone.__cause__) from None
    except TimeoutError as error:
        raise _explain_failure(url, within_s, error) from None


def _explain_failure(url: str, within_s: float, error: BaseException | None) -> CommandError:
    if isinstance(error, aiohttp.SocketTimeoutError):
        return LostControllerError(url, f"nothing came for {within_s:g} s")
    if isinstance(error, TimeoutError):
        return NoControllerError(url, f"no answer within {within_s:g} s")
    if isinstance(error, aiohttp.ClientSSLError):
        return CommandError(_tls_words(url, error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return NoControllerError(url, error.strerror or str(error))
    if isinstance(error, aiohttp.ClientPayloadError):
        return LostControllerError(url, "the connection ended")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return LostControllerError(url, reason)


def _tls_words(url: str, error: aiohttp.ClientSSLError) -> str:
    """Return what is wrong with the TLS of an address, and what to do."""
    cause = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else None
    if not isinstance(cause, ssl.SSLCertVerificationError):
        reason = error.strerror or str(error)
        return f"no TLS with {url} ({reason}): where plain HTTP is served, the address begins with http://"
    advice = (
        "ask by a name or an address that it is for"
        if cause.verify_code in _NAME_MISMATCHES
        else "set SSL_CERT_FILE to a file that holds it, or its CA's"
    )
    return f"the certificate of {url} is not trusted ({cause.verify_message.rstrip('.')}): {advice}"


def read_error(content: bytes) -> ErrorBody | None:
    """Return the error in the body of an answer; None: the body is not one of Roundhouse's errors. Raises nothing."""
    try:
        return ErrorEnvelope.model_validate_json(content).error
    except ValidationError:
        return None


def _error_words(status: int, body: ErrorBody | None) -> str:
    """Return the error in one line: what is wrong, where, and what to do first."""
    if body is None:
        return f"HTTP status {status}"
    message = one_line(body.message)
    if body.param is not None and body.param not in message:
        message = f"`{body.param}`: {message}"
    hint = HINTS.get(body.code, body.next_steps[0] if body.next_steps else "")
    return f"{message.rstrip('.')}. {hint}" if hint else message
