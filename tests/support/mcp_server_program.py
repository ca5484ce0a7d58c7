"""`python -m tests.support.mcp_server_program PORT`: a real MCP server over streamable HTTP, of the package `mcp`."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from mcp_types import EmbeddedResource, ImageContent, TextResourceContents, ToolAnnotations

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A PNG of one pixel."""

server = MCPServer("demo", log_level="CRITICAL")


@server.tool(title="Sum", annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def repeat(text: str, times: int) -> str:
    """Repeat a text."""
    return text * times


@server.tool()
async def wait(seconds: float) -> str:
    """Wait before the answer."""
    await asyncio.sleep(seconds)
    return "late"


@server.tool()
def fail() -> str:
    """Always fail."""
    raise ValueError("no coal")


@server.tool()
def picture() -> Image:
    """Draw a picture."""
    return Image(data=b"\x89PNG" + bytes(96), format="png")


@server.tool()
def crash() -> str:
    """End the server."""
    sys.stdout.flush()
    import os

    os._exit(1)


@server.tool()
async def grow(context: Context) -> str:
    """Get another tool."""

    def grown() -> str:
        """Tell that it is there."""
        return "here"

    server.add_tool(grown)
    await context.notify_tools_changed()
    return "grown"


@server.resource("notes://today", mime_type="text/plain")
def today() -> str:
    """What is to be done today."""
    return "Fetch coal."


@server.resource("notes://{day}")
def note(day: str) -> str:
    """What is to be done on a day."""
    return day


@server.resource("pictures://dot", mime_type="image/png")
def dot() -> bytes:
    """A picture of one pixel."""
    return PIXEL


@server.resource("bundles://all", mime_type="application/zip")
def bundle() -> bytes:
    """What no message can have."""
    return b"PK\x05\x06" + b"\xff" * 18


@server.prompt()
def broken() -> str:
    """Always fail."""
    raise ValueError("no steam")


@server.prompt()
def talk(subject: str) -> list[UserMessage | AssistantMessage]:
    """Begin to talk."""
    resource = TextResourceContents(uri="notes://today", mime_type="text/plain", text="Fetch coal.")
    image = ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mime_type="image/png")
    return [
        UserMessage(f"Let us talk about {subject}."),
        AssistantMessage("With pleasure."),
        UserMessage(EmbeddedResource(type="resource", resource=resource)),
        UserMessage(image),
    ]


@server.prompt()
def greet(name: str, language: str = "en") -> str:
    """Greet somebody."""
    return f"Greet {name} in {language}."


if __name__ == "__main__":
    logging.disable()
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
