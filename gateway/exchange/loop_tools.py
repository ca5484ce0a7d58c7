"""What the loop of tools needs of the tools that there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.protocols.common.conversation import Fields
from gateway.tenancy.api_keys import Caller


class LoopToolSpec(Protocol):
    """A tool as a model sees it."""

    @property
    def name(self) -> str:
        """Of a server's tool with the server's name before it: `SERVER__TOOL`."""

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Fields:
        """JSON Schema of an object."""

    @property
    def writes(self) -> bool:
        """Whether a call may change something."""

    @property
    def server(self) -> str | None:
        """Name of the MCP server; None: the tool is built in."""


class LoopToolResult(Protocol):
    """What a tool answered."""

    @property
    def text(self) -> str:
        """What the model reads."""

    @property
    def is_error(self) -> bool:
        """Whether the tool ran and failed."""


class LoopTools(Protocol):
    """Lists and calls tools for a caller. Implemented by `gateway.tools.runner.ToolRunner`."""

    def list_tools(self, caller: Caller) -> Sequence[LoopToolSpec]:
        """Return what the caller may call now, sorted by name."""

    async def call_tool(
        self, caller: Caller, name: str, arguments: Fields, *, request_id: str, document_tenant: str | None = None
    ) -> LoopToolResult:
        """Call a tool, within its limits. Cancelling the task cancels the call.

        Raises:
            RoundhouseError: `tool_not_found`, `tool_not_allowed`, `tool_arguments_invalid`, `tool_timeout`,
                `tool_failed`, or another code of a part of Roundhouse that the tool asks.
        """
