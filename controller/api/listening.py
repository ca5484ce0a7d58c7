"""The controller's own socket, and the servers behind it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import uvicorn

RECHECK_S: Final = 1.0
"""How often it is looked at whether the socket's file is still there: somebody may delete it, a cleaner of old files
for example, and then no gateway that is started again could connect."""

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: ours ask the controller to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def open_listener(address: Path | tuple[str, int]) -> socket.socket:
    """A socket that is bound to the address. Raises OSError."""
    if isinstance(address, Path):
        # The state folder's lock is ours: whoever left this socket is gone.
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
        listener = socket.create_server(address)
    listener.setblocking(False)
    return listener


class ListeningServer:
    """Serves an app at an address until it is told to end. A socket's file that is deleted is made anew; connections
    that were made through the deleted one go on."""

    def __init__(self, app: Any, address: Path | tuple[str, int], listener: socket.socket) -> None:
        self._app = app
        self._address = address
        self._servers: list[tuple[_Server, asyncio.Task[None]]] = []
        self._inode: int | None = None
        self._is_refused = False
        self._serve(listener)
        self._watch_task = asyncio.create_task(self._watch()) if isinstance(address, Path) else None

    def _serve(self, listener: socket.socket) -> None:
        config = uvicorn.Config(self._app, log_config=None, access_log=False, lifespan="off", ws="websockets-sansio")
        server = _Server(config)
        self._servers.append((server, asyncio.create_task(server.serve(sockets=[listener]))))
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
        """Accept nothing more, and end all connections."""
        if self._watch_task is not None:
            self._watch_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch_task
        for server, _ in self._servers:
            server.should_exit = True
            server.force_exit = True
        await asyncio.gather(*(task for _, task in self._servers))


def _inode_of(path: Path) -> int | None:
    """None: there is no such file."""
    try:
        return path.stat().st_ino
    except OSError:
        return None
