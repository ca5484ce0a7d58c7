"""A fake: an engine that answers each request with the bytes of a script, on a real socket."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, cast

Then = Literal["keep", "close", "reset", "stall", "deaf", "hang_up"]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Script:
    pieces: tuple[bytes, ...] = (OK,)
    """Each is one write, and a client on the same loop has the time to read it before the next."""
    then: Then = "keep"
    """`reset` sends RST. `stall` and `keep` do nothing more; `deaf` neither reads nor closes, but ends what it says;
    `hang_up` closes without TLS's goodbye; only for what fits into the socket."""
    early: bool = False
    """Answer when the request's head is here, and read no more of it."""


def script(answer: bytes, then: Then = "keep", *, cuts: Iterable[int] = (), early: bool = False) -> Script:
    ends = sorted({0, len(answer), *(cut for cut in cuts if 0 < cut < len(answer))})
    return Script(tuple(answer[start:end] for start, end in itertools.pairwise(ends)), then, early)


@dataclass
class ScriptedEngine:
    """Takes its scripts in turn, one a request, whatever the connection. After the last one it answers `OK`."""

    scripts: list[Script] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    """As they came, head and body."""
    served_on: list[int] = field(default_factory=list)
    """The number of the connection that each request came on, counted from 1."""
    connections: int = 0
    peers: set[asyncio.Transport] = field(default_factory=set)
    """Open connections."""
    port: int = 0
    origin: str = "http://127.0.0.1"

    @property
    def url(self) -> str:
        return f"{self.origin}:{self.port}"

    def say(self, data: bytes) -> None:
        """Write on every open connection, unasked."""
        for peer in self.peers:
            peer.write(data)

    def close_connections(self) -> None:
        for peer in list(self.peers):
            peer.close()

    def reset_connections(self) -> None:
        for peer in list(self.peers):
            reset(peer)


@asynccontextmanager
async def scripted(
    *scripts: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[ScriptedEngine]:
    scheme = "http" if tls is None else "https"
    engine = ScriptedEngine(list(scripts), origin=f"{scheme}://[{host}]" if ":" in host else f"{scheme}://{host}")
    server = await asyncio.get_running_loop().create_server(lambda: _Peer(engine), host, 0, ssl=tls)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for peer in list(engine.peers):
            peer.abort()


@asynccontextmanager
async def nobody_accepts() -> AsyncIterator[str]:
    """The base URL of a port whose backlog is full: connections to it never come about."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
            fillers.append(filler)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            for filler in fillers:
                filler.close()


def reset(transport: asyncio.Transport) -> None:
    """Close a connection with RST."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class _Peer(asyncio.Protocol):
    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.number = 0
        self.buffer = b""
        self.answering: list[asyncio.Task[None]] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.engine.connections += 1
        self.number = self.engine.connections
        self.engine.peers.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.peers.discard(self.transport)
        for answering in self.answering:
            answering.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, blank, body = self.buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        scripts = self.engine.scripts
        early = bool(scripts) and scripts[0].early
        length = _content_length(head)
        if len(body) < length and not early:
            return
        self.engine.requests.append(head + blank + body[:length])
        self.engine.served_on.append(self.number)
        self.buffer = body[length:]
        taken = scripts.pop(0) if scripts else Script()
        if taken.early or taken.then == "deaf":
            self.transport.pause_reading()
        self.answering.append(asyncio.get_running_loop().create_task(self.answer(taken)))

    async def answer(self, taken: Script) -> None:
        """Write one piece a turn."""
        for piece in taken.pieces:
            self.transport.write(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if taken.then == "close":
            self.transport.close()
        elif taken.then == "reset":
            reset(self.transport)
        elif taken.then == "deaf":
            self.transport.write_eof()
        elif taken.then == "hang_up":
            assert not self.transport.get_write_buffer_size(), "only for what fits into the socket"
            self.transport.abort()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
