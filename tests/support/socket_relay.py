"""A unix socket that passes every connection on to another one, and can be taken away and made anew."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


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
