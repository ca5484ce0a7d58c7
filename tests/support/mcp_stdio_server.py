"""An MCP server on its standard input and output whose answers are known exactly: a program of its own, for tests.

`python -m tests.support.mcp_stdio_server` speaks through the `mcp` package's own server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("known")


@server.tool()
def echo(text: str) -> str:
    """Answer the text."""
    return text


@server.tool()
def environment() -> str:
    """Answer the names and values of this process's environment as JSON."""
    return json.dumps(dict(os.environ))


@server.tool()
def spawn() -> str:
    """Start a process that outlives the call and its parent's pipes, and answer its pid."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    return str(child.pid)


@server.tool()
async def wait(ctx: Context) -> str:
    """Report progress once, and answer never."""
    await ctx.report_progress(1, 2, "half")
    print("waiting", file=sys.stderr, flush=True)
    try:
        await anyio.sleep_forever()
    except BaseException:
        print("cancelled", file=sys.stderr, flush=True)
        raise
    return ""


@server.tool()
async def wait_for(path: str) -> str:
    """Answer once there is a file at the path."""
    while not await anyio.Path(path).exists():  # noqa: ASYNC110 - nothing in this process signals it
        await anyio.sleep(0.01)
    return "it is there"


@server.tool()
def fail() -> str:
    """Fail as a tool."""
    raise ValueError("as asked")


@server.tool()
def end() -> str:
    """End the process without an answer."""
    os._exit(7)


@server.resource("memo://one")
def memo() -> str:
    """Answer a text."""
    return "one"


@server.prompt()
def greet(name: str) -> str:
    """Answer a prompt."""
    return f"Hello {name}"


if __name__ == "__main__":
    print("the known server starts", file=sys.stderr, flush=True)
    server.run()
