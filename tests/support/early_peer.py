"""A program that answers a request before it has read the body, and what it does then."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Then = Literal["keep", "half-close", "close"]
DEADLINE_S = 30.0
REFUSAL = b'{"error": {"message": "Too much.", "type": "invalid_request_error", "code": "body_too_large"}}'
ANSWER = b"HTTP/1.1 413 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)


class EarlyPeer:
    """Answers each request with `ANSWER` once its head and some bytes of its body are here, and reads no more."""

    def __init__(self, listener: socket.socket, then: Then, taken_bytes: int) -> None:
        """`taken_bytes`: of the body, which are read before the answer. `then`: after the answer, the connection stays,
        is closed for writing, or is closed, although bytes of the request wait unread: the kernel resets it."""
        self.has_answered = threading.Event()
        self.requests = 0
        self._listener = listener
        self._then = then
        self._taken_bytes = taken_bytes
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
            taken = 0
            while taken < self._taken_bytes:
                taken += len(connection.recv(65536))
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
def early_peer(then: Then, path: Path | None = None, taken_bytes: int = 0) -> Iterator[EarlyPeer]:
    """A peer on a port of 127.0.0.1, or on a unix socket at `path`."""
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
    peer = EarlyPeer(listener, then, taken_bytes)
    try:
        yield peer
    finally:
        peer.close()
