"""What an MCP server offers, as the gateway lists it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from assistant.tools.arguments import ArgumentCheck
from assistant.tools.spec import Tool
from contract.errors import RoundhouseError
from contract.tools import McpServerRoute
from gateway.protocols.common.conversation import Fields

ServerState = Literal["connecting", "connected", "down"]
LONGEST_URI: Final = 2048
"""Characters of a resource's address."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a server, as it was listed over one connection. It can be called while that connection is the server's
    present one."""

    route: McpServerRoute
    """The server, with its limits."""
    tool: Tool
    check: ArgumentCheck


@dataclass(frozen=True, slots=True)
class OfferedResource:
    """A resource, or a template of resources, of a server."""

    uri: str
    """Of a template: with its placeholders."""
    name: str
    description: str
    media_type: str | None
    is_template: bool


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt. Its value is a text."""

    name: str
    description: str
    is_required: bool


@dataclass(frozen=True, slots=True)
class OfferedPrompt:
    """A prompt of a server, with the arguments that it takes."""

    name: str
    description: str
    arguments: tuple[PromptArgument, ...]
    """In the server's order."""

    def check_arguments(self, arguments: Fields) -> dict[str, str]:
        """Return the arguments of a request for the prompt, which are texts, as MCP has them.

        Raises:
            RoundhouseError: `tool_arguments_invalid`, with the argument's place in `param` (`arguments.name`): one is
                required and missing, is no text, or is none of the prompt's.
        """
        known = {each.name for each in self.arguments}
        for each in self.arguments:
            if each.is_required and each.name not in arguments:
                raise _misfit(each.name, "is required")
        texts = {}
        for name, value in arguments.items():
            if name not in known:
                raise _misfit(name, "is none of the prompt's")
            if not isinstance(value, str):
                raise _misfit(name, "must be a text")
            texts[name] = value
        return texts


def _misfit(name: str, reason: str) -> RoundhouseError:
    message = f"The argument {name!r:.100} {reason}."
    return RoundhouseError("tool_arguments_invalid", message, param=f"arguments.{name}"[:200])


@dataclass(frozen=True, slots=True)
class Catalog:
    """All that a server offers: tools, resources and prompts, and why others are left out. Immutable."""

    tools: dict[str, OfferedTool] = field(default_factory=dict)
    """By name, with the server's name before it."""
    resources: tuple[OfferedResource, ...] = ()
    prompts: tuple[OfferedPrompt, ...] = ()
    left_out: tuple[str, ...] = ()
    """Why something of the server is not offered, one sentence each."""

    def find_prompt(self, name: str) -> OfferedPrompt | None:
        """Return the prompt of this name; None: the server lists none."""
        return next((each for each in self.prompts if each.name == name), None)


@dataclass(frozen=True, slots=True)
class ServerContents:
    """The answer of an MCP server to `prompts/get` or `resources/read`, with its texts cut."""

    parts: list[Fields]
    """Messages, or contents, with the fields of MCP that `server_connection.messages_of` and `contents_of` name."""
    size: int
    """Bytes of all texts, before they were cut, and characters of all binary data in base64."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One declared server as it is now: its state, since when, why it is not connected, and what it offers."""

    name: str
    state: ServerState
    """`connecting`: it is being connected, or the controller is bringing it up. `down`: the last try failed, or nobody
    brings it up."""
    since: float
    """Unix time in seconds of the last change of `state` or `reason`, or of the server's declaration."""
    reason: str | None
    """Why it is not connected, for an operator; None: it is, or it is being connected."""
    catalog: Catalog
    """What it offers; of a server that is not connected: what it offered last since it was declared."""

    @property
    def is_offered(self) -> bool:
        """Whether its tools are offered to callers: it is connected, or a call may wait until it is again."""
        return self.state != "down"
