"""The listening socket of a program that only other programs of Roundhouse ask, and the HTTP servers on it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvicorn

from common.unread_input import LingeringApp

RECHECK_S: Final = 1.0
"""Seconds between two checks that the socket file still exists. If somebody deletes it, for example a cleaner of old
files, nobody could connect any more."""

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn server without its signal handlers. The programs handle signals themselves."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers as they are."""
        yield


def open_listener(address: Path | tuple[str, int]) -> socket.socket:
    """Bind a non-blocking socket to a path or to (host, port), and return it; the caller closes it. It does not
    listen yet, so that nobody waits for an answer of a program that is still starting.

    A file or socket at the path is replaced, even the socket of a program that still runs: the caller must know that
    none does. Only the owner may connect to the new one. For a unix socket, the umask of the whole process is changed
    for a moment. A host's name is resolved, which may block. Raises OSError where the address is taken or may not be
    bound, a name does not resolve to an IPv4 address, or the socket's folder is missing.
    """
    if isinstance(address, Path):
        # This process holds the state folder's lock, so the process that left this socket has ended.
        address.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        old_umask = os.umask(0o177)
        try:
            listener.bind(str(address))
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(old_umask)
    else:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
        # Connections inherit it. asyncio sets it only on sockets that name their protocol, which accepted ones of this
        # listener do not: then the end of an answer waits 40 ms for the client's acknowledgement of its beginning.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


class ListeningServer:
    """HTTP server of an ASGI app. It serves from its construction, which needs a running event loop, until `close`. The
    app gets no lifespan events, and signal handlers are left as they are. `listener` is what `open_listener` returned
    for `address`; the server closes it at the end. An answer that the app gives before it has read the request's body
    is not lost (see `LingeringApp`). The construction raises OSError where another program listens there since.

    If the file of a unix socket is deleted or replaced, the server opens the socket again within about 1 s
    (`RECHECK_S`). Connections made through the old file continue.
    """

    def __init__(
        self,
        app: Any,
        address: Path | tuple[str, int],
        listener: socket.socket,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: None for connections that are not encrypted."""
        self._tls = tls
        self._app = LingeringApp(app)
        self._address = address
        self._servers: list[tuple[_Server, asyncio.Task[None]]] = []
        self._inode: int | None = None
        self._is_refused = False
        listener.listen()  # uvicorn's task does, too, and nobody would see it fail
        self._serve(listener)
        self._watch_task = asyncio.create_task(self._watch()) if isinstance(address, Path) else None
        if self._watch_task is not None:
            self._watch_task.add_done_callback(_log_failure)

    def _serve(self, listener: socket.socket) -> None:
        config = uvicorn.Config(self._app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio")
        config.load()
        config.ssl = self._tls
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        task.add_done_callback(_log_failure)
        self._servers.append((server, task))
        self._inode = _inode_of(self._address) if isinstance(self._address, Path) else None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            assert isinstance(self._address, Path)
            if _inode_of(self._address) == self._inode:
                continue
            try:
                listener = open_listener(self._address)
            except OSError as error:
                if not self._is_refused:
                    log.warning("%s is gone and cannot be made anew: %s", self._address, error.strerror or error)
                self._is_refused = True
                continue
            self._is_refused = False
            log.warning("%s was deleted or replaced; it is made anew", self._address)
            self._serve(listener)

    async def close(self) -> None:
        """Stop accepting connections, close WebSockets and idle connections, and return once the servers have ended.

        Answers are not waited for: requests under way go on for as long as the event loop runs. The file of a unix
        socket stays. Call once.
        """
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.wait({self._watch_task})
        for server, _ in self._servers:
            server.should_exit = True
            server.force_exit = True
        await asyncio.wait({task for _, task in self._servers})


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("an internal address is not served any more, until a restart", exc_info=error)


def _inode_of(path: Path) -> int | None:
    """Return the inode number. None means that the file does not exist."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
