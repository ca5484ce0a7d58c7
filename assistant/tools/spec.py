"""What a tool is, and what a call of it gives."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.protocols.common.conversation import Fields
from gateway.tenancy.api_keys import Caller

ToolKind = Literal["builtin", "mcp"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model and a client see it: names, description, schema of the arguments, and whether it writes."""

    name: str
    display_name: str
    description: str
    parameters: Fields
    """JSON Schema of the arguments, which are an object."""
    writes: bool
    """Whether a call may change something: the permission `write`."""
    server: str | None
    """Name of the MCP server that has the tool; None: it is built in."""
    own_name: str | None = None
    """How the server names it, with the server's name before; None: as `name`, which is one that models take."""

    @property
    def kind(self) -> ToolKind:
        """Whose tool it is: `builtin`, of the gateway; `mcp`, of an MCP server."""
        return "builtin" if self.server is None else "mcp"

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether the caller's key names the tool, as it is offered or as its server does."""
        names = (self.name,) if self.own_name is None else (self.name, self.own_name)
        return any(map(caller.may_call_tool, names))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered: a text for the model, and whether the tool failed."""

    text: str
    """What the model reads. `ToolRunner` cuts it at the tool's cap and says so in its last line."""
    is_error: bool = False
    """Whether the tool ran and failed, such as for a file that does not exist; `text` tells the model why."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a tool gets it: it is permitted, and its arguments fit the schema as far as `ArgumentCheck` looks. A
    tool checks `pattern`, `patternProperties` and `format` itself."""

    caller: Caller
    document_tenant: str
    """Whose documents it may search."""
    arguments: Fields
    request_id: str
    timeout_s: float
    """Seconds after which `ToolRunner` cancels the call."""
    max_output_bytes: int
    """Bytes of the result's text, in UTF-8, that are kept."""


class Tool(Protocol):
    """A tool that can be called. Each built-in tool implements it."""

    @property
    def spec(self) -> ToolSpec:
        """What is listed of the tool; always the same."""

    def run(self, call: ToolCall) -> Awaitable[ToolResult]:
        """Run the call, and return its result, which need not be cut. Cancelling it ends what it began. It never blocks
        the event loop, and need not bound its own time: `ToolRunner` does.

        Raises:
            RoundhouseError: another part of Roundhouse refuses, or `tool_failed`: the tool cannot be run.
        """


def cut_text(text: str, most_bytes: int) -> str:
    """Return at most the first `most_bytes` bytes of the text in UTF-8, in whole characters; where it is cut, a last
    line, which comes on top, says so.

    Lone surrogates, which JSON may carry and UTF-8 cannot, become replacement characters.
    """
    return cut_texts([text], most_bytes)[0]


def cut_texts(texts: Sequence[str], most_bytes: int) -> list[str]:
    """Return the texts, cut to `most_bytes` bytes together: the first that does not fit is cut as by `cut_text`, and
    those after it are empty."""
    kept, left = [], most_bytes
    is_cut = False
    for text in texts:
        if is_cut:
            kept.append("")
            continue
        data = text[: left + 1].encode("utf-8", errors="replace")
        is_cut = len(data) > left or len(text) > left
        part = data[:left].decode("utf-8", errors="ignore")
        kept.append(f"{part}\n[The output is cut here: it is longer than {most_bytes} bytes.]" if is_cut else part)
        left -= len(data)
    return kept
