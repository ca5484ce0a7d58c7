"""The HTTP transport to one MCP server: bounds on its answers, and failures that cost their own request alone.

The library ends its whole connection, with all calls on it, where one request fails below HTTP. So such failures become
answers: a status of an error with a message of JSON-RPC.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx2
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from contract.tools import MOST_OUTPUT_KIB
from gateway.control.inflight import InflightCounts

TRANSPORT_FAILED: Final = -32090
"""Code, in JSON-RPC's range for implementations, of a request that the server did not answer by HTTP."""
LISTENING_METHOD: Final = "subscriptions/listen"
"""Method of a request whose answer goes on for as long as the connection."""
NOTIFICATION_BYTES_PER_S: Final = 32 * 1024
LEAST_ANSWER_BYTES: Final = 1024 * 1024
"""Bytes that any answer may have."""
ANSWER_FACTOR: Final = 6
"""How many times the cap of a tool's output an answer may have: JSON may take six bytes for one of the text."""
_OF_NO_REPLICA: Final = frozenset({401, 503})
"""Statuses of a replica that is none any more: another one has its address, or the bridge's server has ended."""
_LISTS: Final = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
"""The method that answers with a list of this name."""
_MOST_READ: Final = 1000
"""Entries of an answer that are read; more than are kept of a server."""
_ASSUMED_VERSION: Final = "2025-11-25"
"""Of the protocol, for a server whose version the request does not name."""
DEEPEST_LISTING: Final = 128
"""Objects and arrays within each other that are read of a listing. The library takes some more, and fails a whole list
for one entry that has more."""
_LONGEST_LISTING_REQUEST: Final = 64 * 1024
_CLOSE_S: Final = 2.0
"""Seconds that the end of a session may take."""
_IN_THREAD_BYTES: Final = 64 * 1024
"""Bytes of a listing above which a thread looks for depth."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
"""A string, or the begin or the end of an object or array; in linear time, whatever the text."""


class RunningCalls:
    """The calls that run over one connection. Used in the event loop.

    Where the controller runs the server, each call is in flight at its replica from `hold` on, so that a drain of the
    replica waits for the call.
    """

    def __init__(self, replica: str | None, ledger: InflightCounts) -> None:
        """`replica`: name of the server's replica; None: the controller does not run the server, and nothing is noted
        in `ledger`."""
        self._replica = replica
        self._ledger = ledger
        self._count = 0
        self._are_ended = asyncio.Event()
        self.is_closed = False
        """Whether `close` was called."""

    @contextmanager
    def hold(self, request_id: str) -> Iterator[None]:
        """Count one call as running within the context. `request_id`: of the request that the call belongs to, which
        may have several at a time."""
        self._count += 1
        if self._replica is not None:
            self._ledger.enter_replica(None, self._replica, request_id)
        try:
            yield
        finally:
            if self._replica is not None:
                self._ledger.leave_replica(None, self._replica, request_id)
            self._count -= 1
            self._note_end()

    def close(self) -> None:
        """Begin no further calls: `wait_ended` returns once those that run have ended. From now on, failures of the
        replica are not told: the controller ends it."""
        self.is_closed = True
        self._note_end()

    async def wait_ended(self) -> None:
        """Wait until `close` was called and no call runs any more."""
        await self._are_ended.wait()

    def record_failure(self) -> None:
        """Note that the server refused or broke a connection, so that the controller probes its replica at once. Does
        nothing where the controller does not run it, or after `close`."""
        if self._replica is not None and not self.is_closed:
            self._ledger.record_failure(self._replica)

    def record_answer(self) -> None:
        """Note that the server has answered: failures of its replica that were told before are forgotten."""
        if self._replica is not None:
            self._ledger.record_answer(self._replica)

    def _note_end(self) -> None:
        if self.is_closed and self._count == 0:
            self._are_ended.set()


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Sends requests by another transport. An answer may have `most_bytes` bytes and take `within_s` seconds; streams
    of notifications may go on. No answer may be compressed. What is nested in a listing below `DEEPEST_LISTING` levels
    becomes null, and what the library cannot read of it is left out, so that it costs its own entry alone. Tells
    `calls` of answers, and of connections that are refused or break."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        *,
        max_output_kib: int,
        within_s: float,
        calls: RunningCalls,
        server_name: str | None = None,
    ) -> None:
        """`max_output_kib`: the cap of a tool's output, as declared for the server. `within_s` bounds the whole answer,
        head and body; the end of a session (DELETE) gets `_CLOSE_S`. `server_name`: what TLS asks for; None: the URL's
        host."""
        self._inner = inner
        self._max_output_kib = max_output_kib
        self._within_s = within_s
        self._calls = calls
        self._server_name = server_name
        self.most_bytes = max(LEAST_ANSWER_BYTES, ANSWER_FACTOR * 1024 * max_output_kib)
        """Largest answer in bytes."""
        self.left_out: list[str] = []
        """Why entries of listings are left out, one sentence each. Whoever lists clears it before."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; its header `accept-encoding` is replaced. A POST whose connection fails, or whose answer is
        compressed, is answered with status 502 and a message of JSON-RPC (`TRANSPORT_FAILED`).

        Raises:
            httpx2.TransportError: another request failed. Reading a body that is too large, takes too long or breaks
                off raises httpx2.SSEError (of events) or httpx2.StreamError, in words for an operator.
        """
        request.headers["accept-encoding"] = "identity"
        may_listen = request.method == "GET" or request.headers.get("mcp-method") == LISTENING_METHOD
        within_s = _CLOSE_S if request.method == "DELETE" else self._within_s
        if self._server_name is not None:
            request.extensions = {**request.extensions, "sni_hostname": self._server_name}
        if not may_listen:
            timeouts = {**request.extensions.get("timeout", {}), "read": within_s, "write": within_s}
            request.extensions = {**request.extensions, "timeout": timeouts}
        ends_at = time.monotonic() + within_s
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            self.note_failure(error)
            if request.method != "POST":
                raise
            return _failed_answer(describe_error(error))
        if response.status_code in _OF_NO_REPLICA:
            self._calls.record_failure()
        else:
            self._calls.record_answer()
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return _failed_answer("its answer is compressed, which was not asked for")
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        if may_listen and is_events and response.status_code == 200:
            response.stream = _PacedStream(stream, self.note_failure)
        else:
            kind: type[Exception] = httpx2.SSEError if is_events else httpx2.StreamError
            response.stream = bounded = _BoundedStream(stream, self, ends_at, kind)
            if _asks_for_list(request):
                version = request.headers.get("mcp-protocol-version", _ASSUMED_VERSION)
                entries = ListingFilter(version, self.left_out, is_events=is_events)
                response.stream = _CutStream(bounded, entries, is_events=is_events)
                response.headers.pop("content-length", None)
        return response

    async def aclose(self) -> None:
        """End all connections."""
        await self._inner.aclose()

    def describe_excess(self) -> str:
        """Return, as clauses without a full stop, that an answer is too large, and what would help."""
        kib, needed_kib = self._max_output_kib, self.most_bytes // (ANSWER_FACTOR * 1024)
        if kib >= MOST_OUTPUT_KIB:
            way_out = f"ask for less; its `max_output_kib` of {kib} is the most"
        else:
            way_out = f"ask for less, or declare the server with a `max_output_kib` above {needed_kib} (it is {kib})"
        return f"the answer is larger than {self.most_bytes} bytes: {way_out}"

    def note_failure(self, error: httpx2.TransportError) -> None:
        """Tell `calls` of a connection that was refused or broke. An answer that does not come in time is no such
        failure, and is not told."""
        if not isinstance(error, httpx2.TimeoutException) or isinstance(error, httpx2.ConnectTimeout):
            self._calls.record_failure()


class _PacedStream(httpx2.AsyncByteStream):
    """A stream of notifications, read so slowly that a server which floods takes little of the event loop's time."""

    def __init__(self, inner: httpx2.AsyncByteStream, note_failure: Callable[[httpx2.TransportError], None]) -> None:
        self._inner = inner
        self._note_failure = note_failure

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._inner:
                yield part
                await asyncio.sleep(len(part) / NOTIFICATION_BYTES_PER_S)
        except httpx2.TransportError as error:
            self._note_failure(error)
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that fails with an error of `kind`, which the library takes for a failure of this request alone."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, transport: BoundedTransport, ends_at: float, kind: type[Exception]
    ) -> None:
        self._inner = inner
        self._transport = transport
        self._ends_at = ends_at
        self._kind = kind

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for part in self._inner:
                size += len(part)
                if size > self._transport.most_bytes:
                    raise self._kind(self._transport.describe_excess())
                if time.monotonic() > self._ends_at:
                    raise self._kind("the answer takes too long")
                yield part
        except httpx2.SSEError:
            raise
        except httpx2.TransportError as error:
            self._transport.note_failure(error)
            raise self._kind(f"the answer broke off: {describe_error(error)}") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CutStream(httpx2.AsyncByteStream):
    """A listing that is filtered: the whole of it, or line by line of events."""

    def __init__(self, inner: httpx2.AsyncByteStream, entries: ListingFilter, *, is_events: bool) -> None:
        self._inner = inner
        self._entries = entries
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = bytearray()
        async for part in self._inner:
            held += part
            end = max(part.rfind(b"\n"), part.rfind(b"\r")) + 1 if self._is_events else 0
            if end:
                lines = bytes(held[: len(held) - len(part) + end])
                del held[: len(lines)]
                yield await self._feed(lines)
        yield await self._feed(bytes(held))

    async def _feed(self, text: bytes) -> bytes:
        feed = self._entries.feed
        return feed(text) if len(text) < _IN_THREAD_BYTES else await asyncio.to_thread(feed, text)

    async def aclose(self) -> None:
        await self._inner.aclose()


class ListingFilter:
    """Leaves out what the library cannot read of a listing, entry by entry, and notes why: it would refuse the whole
    listing for one of them. What is no listing passes as it is."""

    def __init__(self, version: str, left_out: list[str], *, is_events: bool) -> None:
        """`version`: of the protocol. `left_out` gets a sentence for each entry. `is_events`: parts are whole lines of
        an event stream; else the one part is the answer's JSON."""
        self._version = version
        self._left_out = left_out
        self._is_events = is_events
        self._cut = DepthCut(DEEPEST_LISTING)

    def feed(self, text: bytes) -> bytes:
        """Return what is passed on of the next part."""
        text = self._cut.feed(text)
        if not self._is_events:
            return self._filter_message(text)
        return b"".join(map(self._filter_line, text.splitlines(keepends=True)))

    def _filter_line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line
        data = line[len(b"data:") :].strip()
        filtered = self._filter_message(data)
        return line if filtered is data else b"data: " + filtered + line[len(line.rstrip(b"\r\n")) :]

    def _filter_message(self, text: bytes) -> bytes:
        try:
            message = json.loads(text)
            result = message["result"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return text
        if not isinstance(result, dict):
            return text
        kept = {name: self._choose(name, result) for name in _LISTS if isinstance(result.get(name), list)}
        if all(len(entries) == len(result[name]) for name, entries in kept.items()):
            return text
        return json.dumps({**message, "result": {**result, **kept}}).encode()

    def _choose(self, name: str, result: dict[str, Any]) -> list[Any]:
        """Return the entries of a list that can be read; all where the answer cannot be read without them either."""
        entries: list[Any] = result[name]
        if self._find_fault(name, {**result, name: []}) is not None:
            return entries
        kept = []
        for entry in entries[:_MOST_READ]:
            fault = self._find_fault(name, {**result, name: [entry]})
            if fault is None:
                kept.append(entry)
                continue
            kind = "resource" if name == "resourceTemplates" else name.removesuffix("s")
            called = entry.get("name") if isinstance(entry, dict) else None
            self._left_out.append(f"The {kind} {str(called)!r:.100} is left out: {fault}.")
        return kept

    def _find_fault(self, name: str, result: dict[str, Any]) -> str | None:
        """Return why the library would refuse the answer; None: it reads it, or does not know the version."""
        try:
            parse_server_result(_LISTS[name], self._version, result)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"] if part not in (name, 0))
            return f"{place}: {first['msg']}" if place else first["msg"]
        except (KeyError, ValueError):
            return None
        return None


class DepthCut:
    """Replaces objects and arrays of a JSON text that are nested too deep by null. The text may come in parts that end
    outside of strings; several texts may follow each other. Text that is no JSON stays none."""

    def __init__(self, deepest: int) -> None:
        """`deepest`: objects and arrays within each other that stay."""
        self._deepest = deepest
        self._depth = 0

    def feed(self, text: bytes) -> bytes:
        """Return the next part of the text with null in the place of each object or array that is nested too deep.

        Parts come in order, and each ends outside of strings: the depth is kept for the next one."""
        kept: list[bytes] = []
        at = 0
        for found in _TOKEN.finditer(text):
            mark = text[found.start()]
            if mark in b"[{":
                self._depth += 1
                if self._depth == self._deepest + 1:
                    kept += (text[at : found.start()], b"null")
            elif mark in b"]}" and self._depth:
                self._depth -= 1
                if self._depth == self._deepest:
                    at = found.end()
        if self._depth <= self._deepest:
            kept.append(text[at:])
        return b"".join(kept)


def _asks_for_list(request: httpx2.Request) -> bool:
    """Return whether a request asks what the server offers."""
    if not isinstance(request.stream, httpx2.ByteStream) or len(request.content) > _LONGEST_LISTING_REQUEST:
        return False
    try:
        method = json.loads(request.content)["method"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(method, str) and method.endswith("/list")


def describe_error(error: Exception) -> str:
    """Return what an error of the connection is, as a clause without an address and without a full stop."""
    if isinstance(error, httpx2.TimeoutException):
        return "it does not answer in time"
    if isinstance(error, httpx2.ConnectError):
        return "it accepts no connection"
    return f"the connection ended ({type(error).__name__})"


def _failed_answer(message: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": TRANSPORT_FAILED, "message": message}}
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=json.dumps(error).encode())
