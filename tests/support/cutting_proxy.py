"""A proxy on loopback that breaks connections: a bad network between a browser and the gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


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
