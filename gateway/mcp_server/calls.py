"""Calls of tools: who may call which, with what arguments, for how long; errors become answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pydantic import ValidationError

from common.log_formats import tag_request
from controller.schema.errors import RoundhouseError
from gateway.ingress.admin_gate import AdminGate
from gateway.mcp_server.answers import Fields, ToolAnswer, answer_error
from gateway.mcp_server.arguments import ToolArguments
from gateway.mcp_server.handlers import HANDLERS, ReportProgress, ToolCaller, ToolHandlers
from gateway.mcp_server.tools import TOOLS, Tool

CALL_S: Final = 180.0
"""Most seconds that a call takes; longer than each request to a program may take, and than a wait."""

logger = logging.getLogger(__name__)


class UnknownToolError(Exception):
    """There is no tool of that name. The text is the name."""


class McpToolCalls:
    """Lists and calls the tools of the MCP server, as far as the caller's scopes open them. One for a gateway; used
    from one event loop."""

    def __init__(self, handlers: ToolHandlers, gate: AdminGate, *, call_s: float = CALL_S) -> None:
        """`gate` tells which callers may use what the scope `admin` opens. `call_s`: most seconds of a call."""
        self._handlers = handlers
        self._gate = gate
        self._call_s = call_s
        self._running: set[asyncio.Timeout] = set()
        self._is_ended = False

    def list_tools(self, by: ToolCaller) -> list[Tool]:
        """Return the tools that the caller may call, those of the scope `inference` first."""
        return [tool for tool in TOOLS if self._is_open(by, tool)]

    async def call_tool(self, by: ToolCaller, name: str, arguments: Fields, report: ReportProgress) -> ToolAnswer:
        """Check the caller's scope and the arguments, call a tool, and return its answer.

        Whatever fails is an answer with `is_error`, without traces of the code: also a call that takes longer than
        `call_s` (`request_timeout`) or that `end_all` ended. A load, an unload or a download that the call began goes
        on then, and also where the call is cancelled. `report` is awaited while the call waits.

        Raises:
            UnknownToolError: there is no tool of that name.
        """
        tool = next((each for each in TOOLS if each.name == name), None)
        if tool is None:
            raise UnknownToolError(name)
        try:
            self._gate.authorize_request(by.caller, tool.scope, by.local_address)
            return await self._call_in_time(by, tool, _read_arguments(tool, arguments), report)
        except RoundhouseError as error:
            return answer_error(error, by.request_id)
        except Exception:
            logger.exception("request %s: tool %s failed", by.request_id, name, extra=tag_request(by.request_id))
            return answer_error(RoundhouseError("internal_error", "The gateway failed on this call."), by.request_id)

    def begin_stop(self) -> None:
        """End waits for loads and unloads, now and in later calls: they answer the state as it is. Returns at once.
        Call when the gateway begins to stop."""
        self._handlers.begin_stop()

    def end_all(self) -> None:
        """End every running call, which answers `gateway_stopping`, and return before they have ended. Later calls are
        not ended. Call when the grace period of a stop is over."""
        self._is_ended = True
        for limit in self._running:
            limit.reschedule(asyncio.get_running_loop().time())

    @property
    def count_running(self) -> int:
        """Number of calls that are running."""
        return len(self._running)

    def _is_open(self, by: ToolCaller, tool: Tool) -> bool:
        try:
            self._gate.authorize_request(by.caller, tool.scope, by.local_address)
        except RoundhouseError:
            return False
        return True

    async def _call_in_time(
        self, by: ToolCaller, tool: Tool, arguments: ToolArguments, report: ReportProgress
    ) -> ToolAnswer:
        try:
            async with asyncio.timeout(self._call_s) as limit:
                self._running.add(limit)
                try:
                    return await HANDLERS[tool.name](self._handlers, by, arguments, report)
                finally:
                    self._running.discard(limit)
        except TimeoutError:
            if self._is_ended:
                message = "The gateway was stopped before the call was complete."
                raise RoundhouseError("gateway_stopping", message) from None
            message = f"The call was not complete after {self._call_s:g} s; what it began goes on."
            raise RoundhouseError("request_timeout", message) from None


def _read_arguments(tool: Tool, arguments: Fields) -> ToolArguments:
    try:
        return tool.arguments.model_validate(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or None
        message = f"`{place}`: {first['msg']}." if place else f"The arguments: {first['msg']}."
        raise RoundhouseError("invalid_request", message, param=place) from None
