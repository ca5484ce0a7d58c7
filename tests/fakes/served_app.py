"""An application of a fake, served on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def served_app(app: web.Application, *, shutdown_s: float = 60.0, backlog: int = 128) -> AsyncIterator[str]:
    """The URL at which the application is served. A request whose client leaves is cancelled; who is inside in the end
    has `shutdown_s` to leave."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=shutdown_s)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=backlog).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
