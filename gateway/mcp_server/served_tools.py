"""The MCP application of a gateway, which comes into being with the first request."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Final

from gateway.mcp_server.calls import McpToolCalls
from gateway.server.asgi import AsgiApp, Receive, Scope, Send

_PROTOCOL: Final = "gateway.mcp_server.protocol"


class ServedTools:
    """Answers MCP requests by `gateway.mcp_server.protocol`, which is imported in a thread with the first one.

    The library takes 23 MiB of memory and most of a second to import, which a gateway without MCP clients saves.
    """

    def __init__(self, calls: McpToolCalls, version: str, most_body_bytes: int) -> None:
        """`version`: of Roundhouse. `most_body_bytes`: largest body of a request."""
        self._calls = calls
        self._version = version
        self._most_body_bytes = most_body_bytes
        self._is_asked = asyncio.Event()
        self._app: asyncio.Future[AsgiApp] | None = None

    async def run(self) -> None:
        """Make the application once a request asks for it, and keep it until this task is cancelled. Where it cannot be
        made, return; every request then raises the reason."""
        await self._is_asked.wait()
        app = self._expect_app()
        try:
            protocol: Any = await asyncio.to_thread(importlib.import_module, _PROTOCOL)
            async with protocol.serve_tools(self._calls, self._version, self._most_body_bytes) as served:
                app.set_result(served)
                await asyncio.Event().wait()  # until the task is cancelled
        except Exception as error:
            if app.done():
                raise
            app.set_exception(error)

    async def serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. `run` must be running. The first one waits until the library is imported.

        `scope["state"]` must have a `ToolCaller` at `CALLER_KEY`. Raises what the import of the library raised.
        Cancelling ends the call.
        """
        self._is_asked.set()
        app = await asyncio.shield(self._expect_app())
        await app(scope, receive, send)

    def _expect_app(self) -> asyncio.Future[AsgiApp]:
        if self._app is None:
            self._app = asyncio.get_running_loop().create_future()
        return self._app
