"""Client of the controller's HTTP interface, for the command line."""

from __future__ import annotations

import asyncio
import getpass
import os
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from common.gateway_token import FILE_VARIABLE, GATEWAY_HEADER, read_token
from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.output import one_line
from controller.schema.errors import ErrorBody, ErrorEnvelope
from controller.schema.status import ControllerStatus

TIMEOUT_S = 10.0
"""Seconds after which a request without a longer timeout fails."""
ACTOR_HEADER = "x-roundhouse-actor"
"""Header that says who asks, for the controller's history. A gateway replaces it."""
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
STREAM_START_S = 30.0
"""Seconds to wait for the headers of a stream, which a gateway may hold back for a while."""
Query: TypeAlias = Mapping[str, str | int | Sequence[str]]
Answer = TypeVar("Answer", bound=BaseModel)
Result = TypeVar("Result")


class NoControllerError(CommandError):
    """No controller listens at the address, or none answers."""

    words = "no controller answers at {url} ({reason}); `roundhouse up` starts one"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(self.words.format(url=url, reason=reason), ExitCode.NO_CONTROLLER)
        self.reason = reason


class LostControllerError(NoControllerError):
    """The connection ended before the end of the answer. The controller may have taken the request."""

    words = "the controller at {url} went away before the end of its answer ({reason})"


class RequestRefusedError(CommandError):
    """The controller answered with an error. `body` is None where the answer has no error envelope."""

    def __init__(self, status: int, body: ErrorBody | None) -> None:
        super().__init__(f"the controller refused: {_error_words(status, body)}")
        self.status = status
        self.body = body

    @property
    def error_code(self) -> str | None:
        """Code in `controller.schema.errors.ERROR_CODES`. None where the answer has no error envelope."""
        return self.body.code if self.body is not None else None


KEY_VARIABLE: Final = "ROUNDHOUSE_KEY"
"""Environment variable with the secret of a key of scope `admin`, for the address of a gateway."""


class ControllerClient:
    """Client of one controller. An async context manager.

    Methods raise NoControllerError where no controller answers, RequestRefusedError where it answers with an error, and
    CommandError where TLS fails.
    """

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """`url` is `unix:<path>` or `http://host:port`."""
        scheme, _, location = url.partition(":")
        if scheme not in ("unix", "http", "https") or not location.strip("/"):
            raise CommandError(f"a controller's address is unix:PATH or http://HOST:PORT, not {url}", ExitCode.USAGE)
        self._url = url
        self._socket = location if scheme == "unix" else None
        self._base = "http://controller" if scheme == "unix" else url.rstrip("/")
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(self._socket) if self._socket is not None else aiohttp.TCPConnector()
        headers = {ACTOR_HEADER: _actor()}
        if self._socket is None and (key := os.environ.get(KEY_VARIABLE)):
            headers["Authorization"] = f"Bearer {key}"
        token_file = os.environ.get(FILE_VARIABLE)
        if self._socket is None and token_file and (token := read_token(Path(token_file))) is not None:
            headers[GATEWAY_HEADER] = token
        # The environment's proxy is not for the way to the controller.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get_status(self) -> ControllerStatus:
        """Return models, gateways, GPUs and problems."""
        return await self._ask("GET", "/internal/status", ControllerStatus)

    async def set_paused(self, paused: bool) -> ControllerStatus:
        """Pause or resume the controller. Returns the status."""
        return await self._ask("POST", "/internal/pause", ControllerStatus, {"paused": paused})

    async def shut_down(self, *, stop_engines: bool) -> None:
        """Ask the controller to end. The answer comes before its end."""
        await self._exchange("POST", "/internal/shutdown", {"stop_engines": stop_engines})

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: object = None,
        query: Query | None = None,
    ) -> Answer:
        _, content = await self._exchange(method, path, body, query)
        return self._parse_answer(kind, content)

    def _parse_answer(self, kind: type[Answer], content: bytes) -> Answer:
        try:
            return kind.model_validate_json(content)
        except ValidationError:
            raise CommandError(f"what answers at {self._url} is no controller of this version") from None

    async def _exchange(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Query | None = None,
        *,
        timeout_s: float | None = None,
    ) -> tuple[int, bytes]:
        """Send a request. Returns status and content of the answer. `path` must be quoted."""
        within_s = self._timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=within_s, connect=self._timeout_s)
        with self._translate_errors(within_s):
            url = self._build_url(path, query)
            async with self._session.request(method, url, json=body, timeout=timeout) as response:
                content = await response.read()
        if response.status >= 400:
            raise RequestRefusedError(response.status, _error_of(content))
        return response.status, content

    async def _chunks(
        self, path: str, query: Query, *, headers: Mapping[str, str], silence_s: float | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an answer as they arrive. Raises LostControllerError after `silence_s` seconds without
        any."""
        timeout = aiohttp.ClientTimeout(total=None, connect=self._timeout_s, sock_read=silence_s)
        with self._translate_errors(STREAM_START_S if silence_s is None else silence_s):
            async with asyncio.timeout(STREAM_START_S):
                response = await self._session.get(self._build_url(path, query), headers=headers, timeout=timeout)
            async with response:
                if response.status >= 400:
                    raise RequestRefusedError(response.status, _error_of(await response.read()))
                async for chunk in response.content.iter_any():
                    yield chunk

    def _build_url(self, path: str, query: Query | None) -> URL:
        try:
            url = URL(self._base + path, encoded=True)
        except ValueError as error:
            raise CommandError(f"{self._url} is no address: {error}", ExitCode.USAGE) from None
        return url.with_query(query) if query else url

    @contextmanager
    def _translate_errors(self, within_s: float) -> Iterator[None]:
        """Convert the transport's errors to those of this module."""
        try:
            yield
        except aiohttp.SocketTimeoutError:
            raise LostControllerError(self._url, f"nothing came for {within_s:g} s") from None
        except TimeoutError:
            raise NoControllerError(self._url, f"no answer within {within_s:g} s") from None
        except aiohttp.ClientSSLError as error:
            raise CommandError(_tls_words(self._url, error)) from None
        except aiohttp.ClientConnectorError as error:
            raise NoControllerError(self._url, error.strerror or str(error)) from None
        except aiohttp.ClientPayloadError:
            raise LostControllerError(self._url, "the connection ended") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise LostControllerError(self._url, reason) from None


def _actor() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in many containers
        return "command line"
    return f"command line of {user}" if user.isascii() and user.isprintable() else "command line"


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


def _error_of(content: bytes) -> ErrorBody | None:
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


def ask_controller(url: str, question: Callable[[ControllerClient], Awaitable[Result]]) -> Result:
    """Ask the controller at `url` one question, from a program without an event loop. Returns the answer."""

    async def _asked() -> Result:
        async with ControllerClient(url) as client:
            return await question(client)

    return asyncio.run(_asked())
