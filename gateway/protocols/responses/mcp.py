"""The tools `mcp` of a request for a response, and the items of their calls. Pure.

The model sees each tool as a function `SERVER__TOOL`. The gateway runs its calls (`tool_rounds`). The
server `roundhouse` stands for the gateway's built-in tools.

A call that failed says why in `error`, in one of OpenAI's forms: what the tool itself reported, a call that no tool
could take, or a server that did not answer.

The ids of calls end with a mark of their round (`mark_round`), because the items of a response say nothing else of
rounds, and clients and stores keep ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields, Tool
from gateway.protocols.common.errors import decode_json
from gateway.protocols.common.field_reader import (
    describe_value,
    field_error,
    optional_field,
    read_model,
    require_field,
    require_text,
)

MCP_TYPE: Final = "mcp"
BUILT_IN: Final = "roundhouse"
"""Label of the server that stands for the gateway's own tools."""
MCP_PATH: Final = "/mcp"
"""Path of the gateway at which it is an MCP server itself."""
_URL: Final = "server_url"
_ELSEWHERE: Final = (_URL, "connector_id", "tunnel_id", "authorization", "headers")
"""Fields by which a request would name a server of its own, or its credentials."""
_PORTS: Final = {"http": 80, "https": 443}
_THIS_HOST: Final = ("localhost", "127.0.0.1", "::1")
_OWN_TYPES: Final = ("function", "custom", "file_search")


class OfferedTool(NamedTuple):
    """A tool that a server offers to the caller of a request. `parameters`: JSON Schema of an object. `writes`: whether
    the tool changes anything."""

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
        """Name of the function that the model calls: `SERVER__TOOL`."""
        return function_name(self.server, self.name)

    @property
    def full_name(self) -> str:
        """The tool's name in Roundhouse: `SERVER__TOOL`, or that of a built-in tool alone."""
        return self.name if self.server == BUILT_IN else self.function


class OfferedServer(NamedTuple):
    """A declared server as the caller of a request sees it, with the tools that the caller may call. `problem`: why its
    tools are not known; None: they are."""

    label: str
    tools: tuple[OfferedTool, ...]
    """The tools that the caller may call, in order."""
    problem: str | None = None
    """Why the server's tools are not known; None: they are."""
    urls: tuple[str, ...] = ()
    """Addresses that a request may name for it: the declared one, and the gateway's own. None is connected for that."""


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
    """A tool `mcp` of a request, as OpenAI's. Fields that name another server or its credentials, such as
    `connector_id`, are refused before."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["mcp"]
    server_label: str = Field(min_length=1)
    server_description: str | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = "always"
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None

    def allows(self, tool: OfferedTool) -> bool:
        """Return whether the model may call the tool: any, if the request does not set `allowed_tools`."""
        allowed = self.allowed_tools
        if isinstance(allowed, ToolFilter):
            return allowed.selects(tool)
        return allowed is None or tool.name in allowed

    def needs_approval(self, tool: OfferedTool) -> bool:
        """Return whether a call of the tool needs an approval of the client's. It does if the request does not say."""
        if isinstance(self.require_approval, ApprovalFilter):
            return self.require_approval.selects(tool)
        return self.require_approval != "never"


class McpServer(NamedTuple):
    """A server that a request names, with the tools that the model may call. `unapproved`: the functions of these whose
    calls need an approval. `problem`: why its tools are not known; None: they are."""

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
    """Return the name of the function that stands for a server's tool: `SERVER__TOOL`."""
    return f"{server}__{tool}"


def functions_of(server: McpServer) -> Iterable[Tool]:
    """Yield the functions that the model gets for a server's tools."""
    for tool in server.tools:
        yield Tool(tool.function, tool.description, tool.parameters)


def is_mcp(tool: object) -> bool:
    """Return whether a declared or allowed tool, which need not be valid, is an `mcp`."""
    return isinstance(tool, dict) and tool.get("type") == MCP_TYPE


def read_mcp_tools(fields: Fields, offered: Mapping[str, OfferedServer]) -> McpTools | None:
    """Return the declared servers that a request names; None: it names none. `offered`: the declared servers of which
    the caller may call anything, by their labels. A server that is not declared but has a `server_url` is ignored
    beside other tools, because agents declare such in every request. Raises RoundhouseError `invalid_request` if a tool
    `mcp` is wrong, or names a server that is not declared or that another of the tools names."""
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
    return {"type": MCP_TYPE, "server_label": tool["server_label"], **optional, "require_approval": approval}


def _read_server(tool: Fields, place: str, server: OfferedServer) -> McpServer:
    for name in _ELSEWHERE:
        value = tool.get(name)
        if name == _URL and isinstance(value, str) and any(is_same_url(value, url) for url in server.urls):
            continue
        if value is not None:
            rule = "must be left out: a server is declared, not named by a request"
            raise field_error(f"{place}.{name}", f"{rule}, except by its declared address" if name == _URL else rule)
    read = read_model(McpTool, {name: value for name, value in tool.items() if name not in _ELSEWHERE}, place)
    tools = tuple(each for each in server.tools if read.allows(each))
    unapproved = frozenset(each.function for each in tools if read.needs_approval(each))
    return McpServer(server.label, tools, unapproved, server.problem)


def is_same_url(one: str, other: str) -> bool:
    """Return whether two texts are the address of one server: whatever the case of scheme and host, with or without the
    scheme's own port and a slash at the end, and by any name of this host. False for what is no address of HTTP, or has
    a user's name."""
    address = _split_url(one)
    return address is not None and address == _split_url(other)


def _split_url(url: str) -> tuple[str, str, int, str, str] | None:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc:
        return None
    named = _THIS_HOST[0] if host in _THIS_HOST else host
    return parts.scheme, named, port or _PORTS[parts.scheme], parts.path.rstrip("/"), parts.query


def _is_served(tool: Any, offered: Mapping[str, OfferedServer]) -> bool:
    if not isinstance(tool, dict):
        return False
    label = tool.get("server_label")
    return tool.get("type") in _OWN_TYPES or (is_mcp(tool) and isinstance(label, str) and label in offered)


def _undeclared(tool: Fields, place: str, offered: Mapping[str, OfferedServer]) -> RoundhouseError:
    label = require_text(tool.get("server_label"), f"{place}.server_label")
    known = ", ".join(offered) or "there is none"
    return field_error(
        f"{place}.server_label",
        f"must be a declared server whose tools you may call ({known}); {describe_value(label)}",
    )


LIST_TYPE: Final = "mcp_list_tools"
CALL_TYPE: Final = "mcp_call"
REQUEST_TYPE: Final = "mcp_approval_request"
RESPONSE_TYPE: Final = "mcp_approval_response"
INVALID_CALL: Final = -32602
"""JSON-RPC's code for a call that a server does not take: of an unknown tool, or with wrong arguments."""
NOT_RUN: Final = "The call was not run."
REFUSED: Final = "The user did not approve this call, so it was not run."
_MARKED: Final = re.compile(r"[a-z]+_(\w*?)[0-9a-f]{1,4}r([0-9]+)", re.ASCII)
"""An id by `mark_round`: a prefix, what the ids of one response have in common, the item's number, and the round's."""


class McpCallItem:
    """A call of a server's tool, from its first argument to its result. `name` is the item's id, `index` its position
    in the output."""

    __slots__ = ("_arguments", "_label", "_tool", "approval_id", "error", "index", "name", "output", "place", "status")

    def __init__(self, name: str, index: int, label: str, tool: str, approval_id: str | None = None) -> None:
        """`approval_id`: of the request by which the client approved the call; None: none was needed."""
        self.name = name
        self.index = index
        self.place = {"item_id": name, "output_index": index}
        self.status = "in_progress"
        self.approval_id = approval_id
        self.output: str | None = None
        """What the tool said; None: nothing yet, or the call failed."""
        self.error: Fields | None = None
        """Why the call failed; None: it did not."""
        self._label = label
        self._tool = tool
        self._arguments: list[str] = []

    @classmethod
    def of(cls, item: Fields, index: int) -> McpCallItem:
        """Return the call of an item `mcp_call` of this gateway as it was at its beginning: in progress, without
        arguments and result. `index`: its position in the output."""
        return cls(item["id"], index, item["server_label"], item["name"], item["approval_request_id"])

    def append_arguments(self, arguments: str) -> None:
        """Add a part of the JSON arguments, cut anywhere."""
        self._arguments.append(arguments)

    @property
    def arguments(self) -> str:
        """The JSON arguments so far."""
        return "".join(self._arguments)

    @property
    def item(self) -> Fields:
        """The item as events and responses hold it. A new object at each call."""
        return {
            "id": self.name,
            "type": CALL_TYPE,
            "status": self.status,
            "approval_request_id": self.approval_id,
            "server_label": self._label,
            "name": self._tool,
            "arguments": self.arguments,
            "output": self.output,
            "error": self.error,
        }


def mark_round(item_id: str, number: int) -> str:
    """Return the id of a call's item with the mark of its round. `item_id`: a fresh id. `number`: of the round in its
    response."""
    return f"{item_id}r{number}"


def round_of(item: Fields) -> str | None:
    """Return which round of which response the item of a call comes from, by its id: equal for all calls of one round,
    and for no others. A call that the client approved is of the round that asked for the approval.

    None: the id has no mark of a round, so the item is not from a response whose calls the gateway runs, or its id was
    replaced.
    """
    item_id = item.get("approval_request_id") or item.get("id")
    marked = _MARKED.fullmatch(item_id) if isinstance(item_id, str) else None
    return None if marked is None else f"{marked[1]}r{marked[2]}"


def list_item(item_id: str, server: McpServer) -> Fields:
    """Return the item that lists a server's tools, or says why they are not known."""
    tools = [describe_tool(tool) for tool in server.tools]
    return {"id": item_id, "type": LIST_TYPE, "server_label": server.label, "tools": tools, "error": server.problem}


def describe_tool(tool: OfferedTool) -> Fields:
    """Return a tool as an item `mcp_list_tools` shows it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.parameters,
        "annotations": {"readOnlyHint": not tool.writes},
    }


def approval_item(item_id: str, label: str, tool: str, arguments: str) -> Fields:
    """Return the item that asks the client to approve a call."""
    return {"id": item_id, "type": REQUEST_TYPE, "server_label": label, "name": tool, "arguments": arguments}


def invalid_call(message: str) -> Fields:
    """Return the error of a call that no tool could take."""
    return {"type": "mcp_protocol_error", "code": INVALID_CALL, "message": message}


def failed_tool(text: str) -> Fields:
    """Return the error of a call whose tool ran and failed. `text` is what the tool said."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


def failed_server(status: int, message: str) -> Fields:
    """Return the error of a call whose tool gave no answer. `status` is the HTTP status that a client of the tool would
    get."""
    return {"type": "http_error", "code": status, "message": message}


def text_of_error(error: object) -> str:
    """Return what the model is told of a call's error, which need not be valid: its texts or its message, else
    `NOT_RUN`."""
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return NOT_RUN
    texts = list(_texts_in(error.get("content")))
    if texts:
        return "\n".join(texts)
    message = error.get("message")
    return message if isinstance(message, str) else NOT_RUN


def read_call(item: Fields, place: str) -> tuple[str, str, str, str]:
    """Return id, function, arguments and result of an item `mcp_call`, as the model knows them. `place` is the item's
    path in the request. Raises RoundhouseError `invalid_request`."""
    output = optional_field(item, "output", str, f"{place}.")
    result = text_of_error(item.get("error")) if output is None else output
    return (*read_request(item, place), result)


def read_request(item: Fields, place: str) -> tuple[str, str, str]:
    """Return id, function and arguments of an item `mcp_call` or `mcp_approval_request`. `place` is the item's path in
    the request. Raises RoundhouseError `invalid_request`."""
    label, name = (require_text(item.get(field), f"{place}.{field}") for field in ("server_label", "name"))
    arguments = require_field(item, "arguments", str, place)
    return require_text(item.get("id"), f"{place}.id"), function_name(label, name), object_text(arguments)


def refusal_text(item: Fields, place: str) -> str:
    """Return what the model is told of a refused call. `item` is the `mcp_approval_response`. Raises RoundhouseError
    `invalid_request` if its reason is no string."""
    reason = optional_field(item, "reason", str, f"{place}.")
    return f"{REFUSED} The user says: {reason}" if reason else REFUSED


def read_arguments(arguments: str) -> Fields | None:
    """Return the decoded arguments of a call; None: they are no JSON object. No arguments are an empty object."""
    if not arguments.strip():
        return {}
    value = decode_json(arguments)
    return value if isinstance(value, dict) else None


def object_text(arguments: str) -> str:
    """Return the arguments of a call if they are the JSON of an object, else `{}`: engines and chat templates decode
    them, and fail on others."""
    return arguments if arguments.strip() and read_arguments(arguments) is not None else "{}"


def _texts_in(content: Any) -> Iterable[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
