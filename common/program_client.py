"""Another program of this installation, which only Roundhouse asks: its address, and an HTTP client, whose answers come
as bytes, in parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from common.internal_tokens import LINK_TOKEN
from common.listening import find_socket_path
from common.processes import without_tracebacks
from common.shared_token import read_token
from common.unread_input import read_unread

_SOCKET_BASE_URL: Final = "http://socket"
"""Stands in requests through a socket, where no host is needed."""


@dataclass(frozen=True, slots=True)
class ProgramAddress:
    """Where a client connects to a controller, to a gateway that forwards to one, or to retrieval, and which token it
    sends. Opens no connection itself."""

    base_url: str
    """Beginning of every URL, without a slash at its end. For a socket, a placeholder host that is not resolved."""
    socket_path: str | None = None
    """Path of the program's unix socket; None: the program listens on a port."""
    token_file: Path | None = None
    """File with the token; None: requests carry no token, as always through a socket."""
    token_header: str = LINK_TOKEN.header
    """Header that carries the token."""

    @classmethod
    def parse(cls, url: str, token_file: Path | None = None, token_header: str = LINK_TOKEN.header) -> ProgramAddress:
        """Parse `unix:<path>`, `http://host:port` or `https://host:port`. `token_file` is ignored for a socket.

        Raises ValueError for any other form. Host and port are not checked.
        """
        socket_path = find_socket_path(url)
        if socket_path:
            return cls(_SOCKET_BASE_URL, socket_path)
        scheme, _, rest = url.partition(":")
        if scheme in ("http", "https") and rest.startswith("//") and rest.strip("/"):
            return cls(url.rstrip("/"), None, token_file, token_header)
        raise ValueError("must be http://host:port or unix:/path/to/the.sock")

    def read_headers(self) -> dict[str, str]:
        """Read the token file, and return the header that carries the token. Blocks for the time of the read.

        Empty if there is no token file, or the file is missing or unusable (see `read_token`); nothing is raised. Call
        for each request: the program may make the token later, or replace it.
        """
        token = read_token(self.token_file) if self.token_file is not None else None
        return {self.token_header: token} if token is not None else {}


_UNREACHED: Final = "{} accepts no connection"
_UNANSWERED: Final = "{} ended before it answered; it may have taken the request"
_BROKEN_OFF: Final = "the connection to {} ended before its answer was complete"


class ProgramGoneError(Exception):
    """The program could not be reached; or the connection ended, or the request's timeout passed, before the whole
    answer came, in which case the program may have carried out the request. The text says which, in plain words;
    `__cause__` is the error of aiohttp or of the system."""


class ProgramAnswer:
    """An HTTP answer of the program, of any status, whose headers have arrived and whose body is still to be read.

    Use it as an async context manager: leaving closes the connection, also where the body was not read to its end.
    """

    def __init__(self, response: aiohttp.ClientResponse, program: str) -> None:
        """`program`: its name in errors."""
        self._response = response
        self._program = program
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Values by header name, upper or lower case."""

    async def __aenter__(self) -> ProgramAnswer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._response.close()

    async def read_part(self) -> bytes:
        """Wait for the next bytes of the body, and return them as they come; empty at its end, and on every later call.

        Raises ProgramGoneError where the connection breaks off or the request's timeout ends.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise ProgramGoneError(_BROKEN_OFF.format(self._program)) from error

    async def read_body(self) -> bytes:
        """Return all that is left of the body; empty if it was read already. Raises ProgramGoneError as
        `read_part`."""
        parts = []
        while part := await self.read_part():
            parts.append(part)
        return b"".join(parts)


class ProgramClient:
    """Sends requests to one program. An async context manager: `send_request` works only while it is entered.

    Each request has a connection of its own and is sent once. A connection that was kept might be dead because the
    program was started anew, and a request that changes something must not be sent twice to find that out. Proxy
    variables of the environment (`HTTP_PROXY`) are ignored.
    """

    def __init__(
        self,
        address: ProgramAddress,
        connect_timeout_s: float,
        *,
        program: str = "the controller",
        headers: Mapping[str, str] | None = None,
        follows_redirects: bool = False,
    ) -> None:
        """`program`: its name in errors. `connect_timeout_s`: seconds to connect, for requests without a timeout of
        their own; their answers may take any time. `headers` are sent with each request, beside those of the address.
        `follows_redirects`: an answer with a redirect is followed; False: it is returned."""
        self._address = address
        self._program = program
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s, sock_connect=connect_timeout_s)
        self._headers = headers
        self._follows_redirects = follows_redirects
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> ProgramClient:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._session = aiohttp.ClientSession(
            connector=open_connector(self._address),
            timeout=self._timeout,
            headers=self._headers,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send_request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> ProgramAnswer:
        """Send a request and wait for the answer's headers. Call while the client is entered.

        The caller closes the answer, by `async with`.

        `target` is the path with its query, percent-encoded; it is sent as it is. To `headers` are added the client's
        own, the token of the address (its file is read each time), and `accept-encoding: identity`. A `body` in parts
        is sent as they come; an exception of its iterator is raised. A program may answer before it has read the whole
        body, and close its connection: the answer is returned like any other, and the rest of the body is not sent.
        `timeout` None: the client's own, which bounds connecting alone; another one counts for reading the answer too.
        An answer with an error status is returned like any other.

        Raises:
            ProgramGoneError: the program cannot be reached, or ended before it answered; or the timeout ended.
            ValueError: the address makes no URL.
        """
        url = URL(self._address.base_url + target, encoded=True)
        request_headers = {**headers, "accept-encoding": "identity", **self._address.read_headers()}
        try:
            response = await self._session.request(
                method,
                url,
                data=body or None,
                headers=request_headers,
                allow_redirects=self._follows_redirects,
                timeout=self._timeout if timeout is None else timeout,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ProgramGoneError(_UNREACHED.format(self._program)) from without_tracebacks(error)
        except (aiohttp.ClientError, OSError) as error:
            raise ProgramGoneError(_UNANSWERED.format(self._program)) from without_tracebacks(error)
        return ProgramAnswer(response, self._program)


class _AnswerFirstProtocol(ResponseHandler):
    """aiohttp's side of a connection, for which an answer that has come counts more than a request that cannot be sent
    to its end."""

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        self._read_answer()
        super().set_exception(exc, exc if exc_cause is None else exc_cause)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._read_answer()
        super().connection_lost(exc)

    def _read_answer(self) -> None:
        transport = self.transport
        if transport is not None and transport.is_closing():
            for part in read_unread(transport):
                self.data_received(part)


def open_connector(address: ProgramAddress) -> aiohttp.BaseConnector:
    """Return a new aiohttp connector to the program: any number of connections, none kept after its use. An answer is
    read also where the program closed the connection before it had read the request. Call it within a running event
    loop. The caller closes it, or the session that owns it does."""
    connector = (
        aiohttp.TCPConnector(limit=0, force_close=True)
        if address.socket_path is None
        else aiohttp.UnixConnector(address.socket_path, limit=0, force_close=True)
    )
    # aiohttp has no option for it.
    connector._factory = partial(_AnswerFirstProtocol, loop=asyncio.get_running_loop())  # type: ignore[assignment] # noqa: SLF001
    return connector
