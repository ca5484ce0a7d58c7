"""Programs at the other end of a connection that misbehave: an answer before the body was read, connections that break,
a socket that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Then = Literal["keep", "half-close", "close"]
DEADLINE_S = 30.0
REFUSAL = b'{"error": {"message": "Too much.", "type": "invalid_request_error", "code": "body_too_large"}}'
ANSWER = b"HTTP/1.1 413 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)


class EarlyPeer:
    """Answers each request with `ANSWER` once its head and the first byte of its body are here, and reads no more."""

    def __init__(self, listener: socket.socket, then: Then) -> None:
        """`then`: after the answer, the connection stays, is closed for writing, or is closed, although bytes of
        the request wait unread: the kernel resets it."""
        self.has_answered = threading.Event()
        self.requests = 0
        self._listener = listener
        self._then = then
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Base URL, of a peer that listens on a port."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)
        for each in (*self._kept, self._listener):
            each.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(DEADLINE_S)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)
            if not byte:
                connection.close()
                return
            head += byte
        if not head.startswith(b"GET"):
            self.requests += 1
            connection.recv(1, socket.MSG_PEEK)
        connection.sendall(ANSWER)
        if self._then == "close":
            connection.close()
        else:
            self._kept.append(connection)
            if self._then == "half-close":
                connection.shutdown(socket.SHUT_WR)
        if not head.startswith(b"GET"):
            self.has_answered.set()


@contextmanager
def early_peer(then: Then, path: Path | None = None) -> Iterator[EarlyPeer]:
    """A peer on a port of 127.0.0.1, or on a unix socket at `path`."""
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
    peer = EarlyPeer(listener, then)
    try:
        yield peer
    finally:
        peer.close()


@dataclass
class CuttingProxy:
    """Forwards bytes both ways. `cut` resets what is open; while `is_down`, new connections are reset, too."""

    target_port: int
    port: int = 0
    is_down: bool = False
    cuts: int = 0
    """How many open connections were cut."""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Base URL of the gateway through this proxy."""
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset every connection that is open now."""
        for writer in list(self._open):
            writer.transport.abort()
            self.cuts += 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection to its end."""
        if self.is_down:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def close(self) -> None:
        """End what still runs."""
        self.is_down = True
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def cutting_proxy(target_port: int) -> AsyncIterator[CuttingProxy]:
    """A proxy to a port of this machine, which listens until the end."""
    proxy = CuttingProxy(target_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        # Half-closed connections are of no use to HTTP: the other direction ends with this one.
        writer.transport.abort() if writer.is_closing() else writer.close()


class SocketRelay:
    """Listens at `path` for `target`. Each listener is a new socket file, as of a daemon that starts again."""

    def __init__(self, path: Path, target: Path) -> None:
        self._path = path
        self._target = target
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()

    def listen(self) -> None:
        """Make the socket file, and pass on what connects to it."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        self._path.chmod(0o666)
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def leave(self) -> None:
        """Stop listening and end all connections. The file stays, as after a SIGKILL."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client = listener.accept()[0]
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._target))
            self._connections |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
