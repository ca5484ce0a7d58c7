"""Tools that models may call, and servers of tools (MCP), as a desired file declares them and as the gateway gets them.

Nothing is enabled unless a file declares it. The commands of servers come from the files alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from contract.hosts import EngineTls
from contract.keys import Token
from contract.status import Wire

SEPARATOR: Final = "__"
"""Stands between the name of an MCP server and the name of its tool."""
GET_PROMPT: Final = "prompts/get"
READ_RESOURCE: Final = "resources/read"
"""What stands for the prompts and the resources of an MCP server, MCP's own methods, where names of its tools do: in
the tools that a key may call (`SERVER__prompts/get`) and that a server offers, in the history and in metrics."""
LONGEST_TOOL_NAME: Final = 64
_NOT_IN_TOOL_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ANY_WORD: Final = re.compile(r"[a-zA-Z0-9]")


def write_tool_name(name: str, *, is_distinct: bool = False) -> str:
    """Return the name under which models know a tool of an MCP server: `[a-zA-Z0-9_-]{1,64}`, which is what the APIs of
    models allow. Pure.

    `name`: with the server's name before it. Other characters become `_`. A name that is too long, or has no letter or
    digit left, ends with a digest of the whole. So does one with `is_distinct`, for a server that has two names which
    would become the same.
    """
    written = _NOT_IN_TOOL_NAMES.sub("_", name)
    own = written.partition(SEPARATOR)[2]
    if is_distinct or len(written) > LONGEST_TOOL_NAME or (own and not _ANY_WORD.search(own)):
        return f"{written[: LONGEST_TOOL_NAME - 7]}_{sha256(name.encode('utf-8', 'replace')).hexdigest()[:6]}"
    return written


ServerName = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z0-9][a-z0-9-]*$")]
"""Name of an MCP server. A tool of it is named `SERVER__TOOL`."""
MOST_OUTPUT_KIB: Final = 4096
"""Largest `max_output_kib` that can be declared."""
REPLICA_PREFIX: Final = "mcp:"
"""What the names begin with under which the controller runs MCP servers and remembers their secrets."""
ToolPattern = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_*][A-Za-z0-9_.*/-]*$")]
"""Name of a tool; `*` stands for any text."""
HostPattern = Annotated[
    str,
    Field(
        max_length=253,
        pattern=r"^((\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
        r"|[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*:[1-9][0-9]{0,4})$",
    ),
]
"""Name of a host in lower case; a leading `*.` stands for one or more labels. A name without it may have a port."""
AbsoluteFolder = Annotated[str, Field(min_length=2, max_length=4096, pattern=r"^/[^\x00]+$")]
"""Absolute path of a folder other than the root."""

_COMMAND_FIELDS: Final = ("image", "env", "network", "mounts")
_OWN_HEADERS: Final = frozenset(
    {
        "accept",
        "connection",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "mcp-protocol-version",
        "mcp-session-id",
        "transfer-encoding",
    }
)
"""Headers, in lower case, that the gateway sets itself."""


class ToolLimits(BaseModel):
    """What every declaration of tools may say. Immutable. Validation is strict: a wrong value or an unknown field
    raises pydantic.ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    timeout_s: float = Field(
        default=30.0, ge=1, le=600, description="Seconds after which a call is ended and fails with `tool_timeout`."
    )
    max_output_kib: int = Field(
        default=64,
        ge=1,
        le=MOST_OUTPUT_KIB,
        description="KiB of a call's result that the model gets. A longer result is cut, and says so in its last line.",
    )


class PlainTool(ToolLimits):
    """A built-in tool without settings of its own."""


class FetchTool(ToolLimits):
    """The tool that reads web pages of allowed hosts."""

    hosts: list[HostPattern] = Field(
        min_length=1,
        description="Hosts that may be read, in lower case; `*.example.org` stands for every subdomain of "
        "example.org, not for example.org itself. The ports are 80 and 443; `HOST:PORT` names another one. A "
        "host whose address is not on the public internet must be named in full.",
    )


class FolderTool(ToolLimits):
    """A tool that reads files of one folder."""

    folder: AbsoluteFolder = Field(
        description="Absolute path of the folder on the gateway's machine (in a container: inside it). Nothing outside "
        "of it can be reached, not even through symbolic or hard links."
    )

    @field_validator("folder")
    @classmethod
    def _is_plain(cls, folder: str) -> str:
        if any(step in (".", "..") for step in folder.split("/")):
            raise ValueError("must not hold `.` or `..` as a step of the path")
        if not folder.strip("/"):
            raise ValueError("must be a folder below the root")
        return folder


class WriteTool(FolderTool):
    """The tool that writes files of one folder."""

    write: bool = Field(description="Must be `true`, as the explicit permission to write.")

    @field_validator("write")
    @classmethod
    def _is_permitted(cls, write: bool) -> bool:
        if not write:
            raise ValueError("must be `true`")
        return write


BuiltinTool = Literal[
    "current_time",
    "calculate",
    "search_documents",
    "fetch_url",
    "read_file",
    "list_files",
    "search_files",
    "write_file",
]
"""Name of a built-in tool."""
BUILTIN_TOOLS: Final[Mapping[str, type[ToolLimits]]] = MappingProxyType(
    {
        "current_time": PlainTool,
        "calculate": PlainTool,
        "search_documents": PlainTool,
        "fetch_url": FetchTool,
        "read_file": FolderTool,
        "list_files": FolderTool,
        "search_files": FolderTool,
        "write_file": WriteTool,
    }
)
"""Built-in tools by name, with the class of their declaration."""


class McpServer(ToolLimits):
    """One MCP server as a desired file declares it under `mcp_servers`: with `url`, or with `command`."""

    url: str | None = Field(
        default=None,
        max_length=2000,
        pattern=r"^https?://[^\s?#]+$",
        description="Address of a server that speaks streamable HTTP, without a query. The gateway connects to it. "
        "Either `url` or `command` is required.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers of each request to `url`, such as `Authorization`. Their values are secret.",
    )
    command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Command of a server that speaks through its standard input and output, and its arguments. The "
        "controller starts it, as it starts engines.",
    )
    image: str | None = Field(
        default=None, description="Container image of `command` (docker runtime only); default: the worker's."
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables of `command`. It gets no other ones of Roundhouse."
    )
    network: bool = Field(
        default=False, description="Whether the container of `command` may reach the network (docker runtime only)."
    )
    mounts: list[str] = Field(
        default_factory=list,
        description="Folders of the host that the container of `command` gets (docker runtime only), as "
        "`HOST:CONTAINER`, read-only, or `HOST:CONTAINER:rw`.",
    )
    tools: list[ToolPattern] | None = Field(
        default=None,
        description="Tools of the server that are offered, without the server's name; `*` stands for any text; "
        "`prompts/get` stands for its prompts, and `resources/read` for its resources; default: all.",
    )

    @field_validator("url")
    @classmethod
    def _holds_no_user(cls, url: str | None) -> str | None:
        if url is not None and "@" in url.split("/")[2]:
            raise ValueError("must not hold a user or a password; `headers` may")
        return url

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is None:
                raise ValueError("no header can have the name of one of these")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"must not hold `{name}`, which the protocol sets itself")
            if not value.isprintable() or not value.isascii():
                raise ValueError(f"the value of `{name}` must hold printable ASCII characters alone")
        return headers

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, command: list[str] | None) -> list[str] | None:
        if command is not None and (not command[0] or any("\0" in word for word in command)):
            raise ValueError("must begin with the name of a program, and hold no null characters")
        return command

    @field_validator("env")
    @classmethod
    def _can_be_set(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None or "\0" in value:
                raise ValueError("a variable's name holds only letters, digits and _, and its value no null character")
        return env

    @field_validator("mounts")
    @classmethod
    def _can_be_mounted(cls, mounts: list[str]) -> list[str]:
        for mount in mounts:
            match = re.fullmatch(r"(/[^:\0]+):(/[^:\0]+)(:ro|:rw)?", mount)
            if match is None or ".." in mount.split("/"):
                raise ValueError("must be `HOST:CONTAINER` or `HOST:CONTAINER:rw`, both absolute paths of folders")
        return mounts

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if self.url is None and self.command is None:
            raise ValueError("`url` or `command` is required")
        if self.url is not None and self.command is not None:
            raise ValueError("`command` and `url` exclude each other")
        if self.url is not None:
            for name in _COMMAND_FIELDS:
                if name in self.model_fields_set:
                    raise ValueError(f"`{name}` belongs to a server with `command`, and this one has `url`")
        elif "headers" in self.model_fields_set:
            raise ValueError("`headers` belong to a server with `url`, and this one has `command`")
        return self


def replica_model(server: str) -> str:
    """Return the name under which the controller runs an MCP server, as it runs models, and remembers its secrets. No
    model of a file may have such a name."""
    return f"{REPLICA_PREFIX}{server}"


class ToolRoute(Wire):
    """One enabled built-in tool in the routing table."""

    name: str = Field(description="Name of the tool, one of `BUILTIN_TOOLS`; a gateway ignores one it does not know.")
    timeout_s: float = 30.0
    max_output_kib: int = 64
    hosts: tuple[str, ...] = Field(default=(), description="`fetch_url`: hosts that may be read, as declared.")
    folder: str | None = Field(
        default=None, description="Tools of files: absolute path of the folder in the gateway; null: another tool."
    )


class McpServerRoute(Wire):
    """One declared MCP server in the routing table."""

    name: str
    url: str | None = Field(
        description="URL at which the server speaks streamable HTTP; null: it cannot be used now, see `reason`."
    )
    reason: str | None = Field(
        default=None, description="Why the server cannot be used now, without secrets; null: it can, or nobody knows."
    )
    is_expected: bool = Field(
        default=False,
        description="Where `url` is null: whether the controller is bringing the server up, so that a call may wait.",
    )
    token: Token | None = Field(
        default=None, description="Bearer token of a server that the controller runs; null: it has none."
    )
    headers: dict[str, Token] = Field(
        default_factory=dict, description="Headers of each request to the server, as declared. The values are secret."
    )
    replica: str | None = Field(
        default=None,
        description="Name of the replica if the controller runs the server; null: the server is somebody else's.",
    )
    tls: EngineTls | None = Field(
        default=None,
        description="How to open connections to the relay of another host, as in an endpoint; absent: none is between.",
        exclude_if=lambda tls: tls is None,
    )
    tools: tuple[str, ...] | None = Field(
        default=None, description="Names or patterns of the server's tools that are offered; null: all."
    )
    timeout_s: float = 30.0
    max_output_kib: int = 64


class ToolCallRecord(Wire):
    """One ended call of a tool, as a gateway reports it for the history."""

    sequence: int = Field(description="Number of the call since the gateway's start, from 1.")
    at: float = Field(description="Unix time in seconds at which the call began.")
    tool: str = Field(
        description="Name of the tool; of an MCP server's: `SERVER__TOOL`; for a prompt or a resource of a server: "
        "`SERVER__prompts/get` or `SERVER__resources/read`."
    )
    server: str | None = Field(default=None, description="Name of the MCP server; null: a built-in tool.")
    caller: str = Field(description="Name of the key, or of the client where no keys are declared.")
    request_id: str = Field(default="", description="Id of the request that the call belongs to.")
    arguments: str = Field(
        default="",
        description="Arguments as JSON text, at most 4096 characters of it. The controller masks the secrets that it "
        "knows, and keeps 200 characters: a secret that the gateway cut in two could not be found.",
    )
    outcome: str = Field(
        description="`ok`; `error`: the tool ran and failed; `cancelled`; else the error code of a call that was "
        "refused or did not end, such as `tool_not_allowed` or `tool_timeout`."
    )
    duration_ms: int = Field(default=0, description="Milliseconds that the call took.")
    output_bytes: int = Field(default=0, description="Bytes of the result before it was cut, in UTF-8.")
