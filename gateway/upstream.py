"""The engine's side of one request. The only file that knows which HTTP client is used."""

from __future__ import annotations

import io
from types import TracebackType

import aiohttp
from aiohttp import hdrs

from controller.schema.routing import Endpoint

_ONE_WRITE_BYTES = 1024 * 1024
"""Above this aiohttp wants a body as a file, to send it in parts."""


_OWN_HEADERS: dict[str, str] = {
    hdrs.CONTENT_TYPE: "application/json",
    hdrs.ACCEPT: "*/*",
    hdrs.ACCEPT_ENCODING: "identity",  # the usage is read from the answer
    hdrs.USER_AGENT: "roundhouse",
}


class EngineFailureError(Exception):
    """The engine's side failed. The text is plain; the client library's own error is the cause."""


class RefusedError(EngineFailureError):
    """The replica did not accept a connection: the request never reached it."""


class BrokenError(EngineFailureError):
    """The connection was closed before the answer's first byte."""


class GarbledError(EngineFailureError):
    """What came is not an HTTP answer."""


class EngineDiedError(EngineFailureError):
    """The connection ended before the answer was complete."""


class EngineAnswer:
    """An answer whose headers have come. Leaving its context before its end makes the engine stop."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self.status = response.status
        self.content_type = response.headers.get("content-type", "")
        self.retry_after = response.headers.get("retry-after")

    async def __aenter__(self) -> EngineAnswer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Closing is cancelling: it tells the engine that nobody listens. After the end it changes nothing, because
        # the connection went back to the pool with the last byte.
        if not self._content.at_eof():
            self._response.close()

    async def read(self) -> bytes:
        """The next bytes as they come; empty at the end.

        Raises:
            EngineDiedError: the answer broke off.
        """
        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineDiedError("the connection ended before its answer was complete") from error


class Upstream:
    """Connections to engines, kept open between requests, for as long as its context is entered."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._kept: aiohttp.ClientSession
        self._single: aiohttp.ClientSession

    async def __aenter__(self) -> Upstream:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._kept = _session(self._connect_timeout_s, keep=True)
        self._single = _session(self._connect_timeout_s, keep=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._kept.close()
        await self._single.close()

    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, headers: dict[str, str], *, fresh: bool
    ) -> EngineAnswer:
        """Send a request and wait for the answer's headers. `fresh` opens a connection of its own.

        `headers` is extended by the endpoint's own.

        Raises:
            RefusedError, BrokenError, GarbledError: as they say.
        """
        headers.update(_OWN_HEADERS)
        if endpoint.token is not None:
            headers[hdrs.AUTHORIZATION] = f"Bearer {endpoint.token.get_secret_value()}"
        session = self._single if fresh else self._kept
        data = body if len(body) <= _ONE_WRITE_BYTES else io.BytesIO(body)
        try:
            response = await session.post(engine_url(endpoint, path), data=data, headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise RefusedError("it accepts no connection") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise BrokenError("it closed the connection before it answered") from error
        except aiohttp.ClientError as error:
            raise GarbledError("what it sent is not an HTTP answer") from error
        return EngineAnswer(response)


def engine_url(endpoint: Endpoint, path: str) -> str:
    """Where `path` of our own API is at this endpoint. A remote's base URL may hold the `/v1` itself."""
    if path.startswith("/v1/"):
        return endpoint.base_url + endpoint.api_prefix + path[len("/v1") :]
    return endpoint.base_url + path


def _session(connect_timeout_s: float, *, keep: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=not keep),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s, sock_connect=connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
