"""HTTP client for requests to the controller's API. Tables and reports use the WebSocket of `link` instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final

import aiohttp
from yarl import URL

from common.tracebacks import without_tracebacks
from gateway.control.link import REFUSED_WORDS, TOKEN_REFUSED, ControllerAddress

CONNECT_TIMEOUT_S: Final = 2.0


class ControllerGoneError(Exception):
    """The controller cannot be reached, or its connection ended. The text is for people; the cause is aiohttp's."""


class ControllerAnswer:
    """An HTTP answer of the controller whose headers have arrived. Leaving its context closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Values by header name, upper or lower case."""

    async def __aenter__(self) -> ControllerAnswer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._response.close()

    async def read_part(self) -> bytes:
        """Return the next bytes of the body as soon as any arrive; empty at the end.

        Raises:
            ControllerGoneError: the connection ended before the answer was complete.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise ControllerGoneError(
                "the connection to the controller ended before its answer was complete"
            ) from error


class ControllerClient:
    """Client of the controller's API, usable while its context is entered.

    Each request opens a connection of its own: a kept one may be stale, and a load must not be sent twice to find out.
    """

    def __init__(self, address: ControllerAddress) -> None:
        self._address = address
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> ControllerClient:
        # Not in __init__: aiohttp's sessions belong to a running event loop.
        self._session = aiohttp.ClientSession(
            connector=self._address.new_connector(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
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
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
    ) -> ControllerAnswer:
        """Send a request and wait, without a time limit, for the answer's headers.

        `target`: path and query, percent-encoded; sent unchanged.

        Raises:
            ControllerGoneError: the controller cannot be reached, ended before it answered, or refused this gateway's
                token.
        """
        url = URL(self._address.base + target, encoded=True)
        request_headers = {**headers, "accept-encoding": "identity", **self._address.read_headers()}
        try:
            response = await self._session.request(
                method, url, data=body or None, headers=request_headers, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ControllerGoneError("the controller accepts no connection") from without_tracebacks(error)
        except (aiohttp.ClientError, OSError) as error:
            raise ControllerGoneError(
                "the controller ended before it answered; it may have taken the request"
            ) from without_tracebacks(error)
        if response.status == TOKEN_REFUSED:
            response.close()
            raise ControllerGoneError(REFUSED_WORDS)
        return ControllerAnswer(response)
