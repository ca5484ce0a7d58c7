"""A client of the gateway on a bare socket, which sends any bytes; and what must be true of the gateway afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.wait import until

PATIENCE_S = 60.0
"""No answer takes that long: what is waited for longer hangs."""


@dataclass
class Answer:
    """One answer as it came; `whole` once its end has come."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    def all(self, name: str) -> list[str]:
        """The header's values."""
        return [value for known, value in self.headers if known == name]

    def __getitem__(self, name: str) -> str:
        (value,) = self.all(name)
        return value

    @property
    def error(self) -> Any:
        """The inner object of an envelope, or of Anthropic's form."""
        return json.loads(self.body)["error"]


class _Reader:
    """Parses answers; raises httptools' errors for what is none. Interim answers (1xx) are kept apart."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.interim: list[int] = []
        self._parser = httptools.HttpResponseParser(self)
        self._now = Answer()

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._now = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._now.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._now.status = self._parser.get_status_code()
        if self._now.status >= 200:
            self.answers.append(self._now)

    def on_body(self, body: bytes) -> None:
        self._now.body += body

    def on_message_complete(self) -> None:
        self._now.whole = True
        if self._now.status < 200:
            self.interim.append(self._now.status)


class RawClient:
    """One connection. `answers` grows as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = _Reader()
        self.received = b""
        self.ended = False
        """The gateway ended the connection."""

    @property
    def answers(self) -> list[Answer]:
        return self._answers.answers

    @property
    def interim(self) -> list[int]:
        """Statuses of interim answers, such as 100."""
        return self._answers.interim

    def write(self, data: bytes) -> None:
        """Send without waiting; harmless once the connection is gone."""
        self._writer.write(data)

    async def send(self, *parts: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                self._writer.write(part)
                await self._writer.drain()
                await asyncio.sleep(0)

    async def read_bytes(self) -> bytes:
        """What has come, or comes next, whatever it is; empty: the connection has ended."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                data = await self._reader.read(65536)
        except ConnectionError:
            data = b""
        except TimeoutError:
            raise AssertionError(f"the gateway hangs; it said {self.received!r:.500}") from None
        self.ended = not data
        self.received += data
        return data

    async def read(self) -> bool:
        """Take what has come, or wait for something. False: the connection has ended."""
        data = await self.read_bytes()
        if data:
            self._answers.feed(data)
        return bool(data)

    async def answer(self, number: int = 1) -> Answer:
        while len(self.answers) < number or not self.answers[number - 1].whole:
            assert await self.read(), f"the connection ended after {self.received!r:.500}"
        return self.answers[number - 1]

    async def to_the_end(self) -> list[Answer]:
        """All answers, when the gateway has ended the connection."""
        while await self.read():
            pass
        return self.answers

    def half_close(self) -> None:
        """Send no more, and go on reading."""
        with contextlib.suppress(OSError, RuntimeError):  # uvloop's, where the connection has ended
            self._writer.write_eof()

    def reset(self) -> None:
        """End the connection as a process that is killed with unread data does."""
        sock: socket.socket | None = self._writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


@contextlib.asynccontextmanager
async def raw(gateway: GatewayHarness, *, receive_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """A connection to the gateway. `receive_bytes` is the kernel's buffer of what is not read yet."""
    address = urlsplit(gateway.url)
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=receive_bytes or 65536)
    client = RawClient(reader, writer)
    try:
        yield client
    finally:
        client.close()


def chat_body(**fields: Any) -> bytes:
    """Of a chat completion of the model `m`."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}).encode()


def request(
    method: str = "POST",
    target: str = "/v1/chat/completions",
    body: bytes | None = None,
    headers: Iterable[str] = (),
) -> bytes:
    """A request's bytes; of a chat, unless something else is said."""
    sent = chat_body() if body is None and method == "POST" else body or b""
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", *headers]
    if sent:
        lines.append(f"content-length: {len(sent)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + sent


async def spotless(gateway: GatewayHarness) -> None:
    """Nothing is left of any client: no exchange, no count, no connection but kept ones to engines."""
    server = gateway.server
    assert server is not None
    parts = server.gateway.inference._services
    await until("no connection of a client is left", lambda: not server.server_state.connections)
    await until("no exchange is left", lambda: not parts.exchanges)
    await until("nothing is inside an engine", lambda: not any(parts.ledger.inflight.values()))
    await until("nothing is queued", lambda: not any(parts.admission.depths.values()))
    await until("no connection to an engine is at work", lambda: not parts.engines.busy_connections)
    await until("no task is left", lambda: all(task.done() for task in server.server_state.tasks))
