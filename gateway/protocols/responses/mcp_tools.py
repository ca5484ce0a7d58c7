"""The tools `mcp` of a request for a response: which declared servers it names, and what the model may call of them.
Pure.

The model sees each tool as a function `SERVER__TOOL`. The gateway runs its calls (`rounds_writer`, `tool_rounds`). The
server `roundhouse` stands for the gateway's built-in tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields, Tool
from gateway.protocols.common.field_reader import describe_value, field_error, require_text

TYPE: Final = "mcp"
BUILT_IN: Final = "roundhouse"
"""Label of the server that stands for the gateway's own tools."""
_ELSEWHERE: Final = ("server_url", "connector_id", "tunnel_id", "authorization", "headers")
"""Fields by which a request would name a server of its own, or its credentials."""
_OWN_TYPES: Final = ("function", "custom", "file_search")


class OfferedTool(NamedTuple):
    """A tool that a server offers to the caller of a request."""

    server: str
    """The server's label."""
    name: str
    """The tool's name on that server."""
    description: str
    parameters: Fields
    """JSON Schema of an object."""
    writes: bool
    """Whether the tool changes anything."""

    @property
    def function(self) -> str:
        """Name of the function that the model calls."""
        return function_name(self.server, self.name)

    @property
    def full_name(self) -> str:
        """The tool's name in Roundhouse: `SERVER__TOOL`, or that of a built-in tool alone."""
        return self.name if self.server == BUILT_IN else self.function


class OfferedServer(NamedTuple):
    """A declared server as the caller of a request sees it."""

    label: str
    tools: tuple[OfferedTool, ...]
    """The tools that the caller may call, in order."""
    problem: str | None = None
    """Why the server's tools are not known; None: they are."""


class ToolFilter(BaseModel):
    """A selection of a server's tools. A tool must suit every field that is set."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tool_names: list[str] | None = None
    read_only: bool | None = None

    def selects(self, tool: OfferedTool) -> bool:
        """Return whether the tool is selected."""
        is_named = self.tool_names is None or tool.name in self.tool_names
        return is_named and (self.read_only is None or self.read_only is not tool.writes)


class ApprovalFilter(BaseModel):
    """Which tools need an approval. A tool that neither filter selects needs one, unless `always` alone is set."""

    model_config = ConfigDict(extra="forbid", strict=True)

    always: ToolFilter | None = None
    never: ToolFilter | None = None

    def selects(self, tool: OfferedTool) -> bool:
        """Return whether a call of the tool needs an approval."""
        if self.always is not None and self.always.selects(tool):
            return True
        if self.never is not None:
            return not self.never.selects(tool)
        return self.always is None


class McpTool(BaseModel):
    """A tool `mcp` of a request, as OpenAI's. What names a server that is not declared is refused before."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["mcp"]
    server_label: str = Field(min_length=1)
    server_description: str | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = "always"
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None

    def allows(self, tool: OfferedTool) -> bool:
        """Return whether the model may call the tool."""
        allowed = self.allowed_tools
        if isinstance(allowed, ToolFilter):
            return allowed.selects(tool)
        return allowed is None or tool.name in allowed

    def needs_approval(self, tool: OfferedTool) -> bool:
        """Return whether a call of the tool needs an approval of the client's."""
        if isinstance(self.require_approval, ApprovalFilter):
            return self.require_approval.selects(tool)
        return self.require_approval != "never"


class McpServer(NamedTuple):
    """A server of a request."""

    label: str
    tools: tuple[OfferedTool, ...]
    """The tools that the model may call."""
    unapproved: frozenset[str]
    """Functions whose calls need an approval."""
    problem: str | None
    """Why its tools are not known; None: they are."""


@dataclass(frozen=True, slots=True)
class McpTools:
    """The declared servers that a request names, in the order of its `tools`."""

    servers: tuple[McpServer, ...]

    def find_server(self, label: object) -> McpServer | None:
        """Return the server with this label; None: the request names none such."""
        return next((server for server in self.servers if server.label == label), None)

    def find_tool(self, function: str) -> OfferedTool | None:
        """Return the tool that a function stands for; None: the request has no such tool."""
        tools = (tool for server in self.servers for tool in server.tools)
        return next((tool for tool in tools if tool.function == function), None)

    def needs_approval(self, function: str) -> bool:
        """Return whether calls of the function need an approval of the client's."""
        return any(function in server.unapproved for server in self.servers)

    def split_function(self, function: str) -> tuple[str, str]:
        """Return the server's label and the tool's name that the model means by a function, which need not exist. A
        name without a server's label is taken for a tool of the first server."""
        for server in self.servers:
            prefix = function_name(server.label, "")
            if function.startswith(prefix):
                return server.label, function.removeprefix(prefix)
        return self.servers[0].label, function


def function_name(server: str, tool: str) -> str:
    """Return the name of the function that stands for a server's tool."""
    return f"{server}__{tool}"


def functions_of(server: McpServer) -> Iterable[Tool]:
    """Yield the functions that the model gets for a server's tools."""
    for tool in server.tools:
        yield Tool(tool.function, tool.description, tool.parameters)


def is_mcp(tool: object) -> bool:
    """Return whether a declared or allowed tool, which need not be valid, is an `mcp`."""
    return isinstance(tool, dict) and tool.get("type") == TYPE


def read_mcp_tools(fields: Fields, offered: Mapping[str, OfferedServer]) -> McpTools | None:
    """Return the declared servers that a request names; None: it names none.

    `offered`: the declared servers of which the caller may call anything, by their labels. A server that is not
    declared but has a `server_url` is ignored beside other tools, because agents declare such in every request.

    Raises:
        RoundhouseError: `invalid_request`: a tool `mcp` is wrong, names a server that is not declared, or one that
            another names; its `param` is the path to the value.
    """
    tools = fields.get("tools")
    if not isinstance(tools, list):
        return None
    has_others = any(_is_served(tool, offered) for tool in tools)
    servers: list[McpServer] = []
    for number, tool in enumerate(tools):
        if not is_mcp(tool):
            continue
        place = f"tools[{number}]"
        server = offered.get(tool.get("server_label")) if isinstance(tool.get("server_label"), str) else None
        if server is None:
            if has_others and isinstance(tool.get("server_url"), str):
                continue
            raise _undeclared(tool, place, offered)
        if any(each.label == server.label for each in servers):
            raise field_error(f"{place}.server_label", f"must be no other tool's; {describe_value(server.label)}")
        servers.append(_read_server(tool, place, server))
    return McpTools(tuple(servers)) if servers else None


def echo_mcp(tool: Fields) -> Fields:
    """Return a tool `mcp`, which must have been read without an error, as the response repeats it."""
    optional = {name: tool[name] for name in ("server_description", "allowed_tools") if tool.get(name) is not None}
    approval = tool.get("require_approval") or "always"
    return {"type": TYPE, "server_label": tool["server_label"], **optional, "require_approval": approval}


def _read_server(tool: Fields, place: str, server: OfferedServer) -> McpServer:
    for name in _ELSEWHERE:
        if tool.get(name) is not None:
            raise field_error(f"{place}.{name}", "must be left out: a server is declared, not named by a request")
    try:
        read = McpTool.model_validate({name: value for name, value in tool.items() if name not in _ELSEWHERE})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        at = ".".join((place, *map(str, first["loc"])))
        raise RoundhouseError("invalid_request", f"`{at}`: {first['msg']}.", param=at) from None
    tools = tuple(each for each in server.tools if read.allows(each))
    unapproved = frozenset(each.function for each in tools if read.needs_approval(each))
    return McpServer(server.label, tools, unapproved, server.problem)


def _is_served(tool: Any, offered: Mapping[str, OfferedServer]) -> bool:
    if not isinstance(tool, dict):
        return False
    label = tool.get("server_label")
    return tool.get("type") in _OWN_TYPES or (is_mcp(tool) and isinstance(label, str) and label in offered)


def _undeclared(tool: Fields, place: str, offered: Mapping[str, OfferedServer]) -> RoundhouseError:
    label = require_text(tool.get("server_label"), f"{place}.server_label")
    known = _names(list(offered))
    return field_error(
        f"{place}.server_label",
        f"must be a declared server whose tools you may call ({known}); {describe_value(label)}",
    )


def _names(labels: Sequence[str]) -> str:
    return ", ".join(labels) if labels else "there is none"
