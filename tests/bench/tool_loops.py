"""Clients whose models call tools through a gateway, again and again, in a process of their own.

    python -m tests.bench.tool_loops PORT COUNT SERVER/TOOL[,SERVER/TOOL...]

So many clients, each with one of the tools, in turn. Prints `begun` when each of them has had a response that
begins, and at SIGTERM or at the end of its standard input one JSON object: outcome of the calls to their number.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import Counter
from typing import Any, Final

import aiohttp

from tests.bench.tool_sides import NICENESS

MODEL: Final = "loops"
CALLS: Final = 8
"""Calls of one response."""


async def _loop(session: aiohttp.ClientSession, url: str, tool: str, begun: asyncio.Event, seen: Counter[str]) -> None:
    server, _, name = tool.partition("/")
    asked = {
        "model": MODEL,
        "input": f"Call {name}",
        "tools": [{"type": "mcp", "server_label": server, "require_approval": "never"}],
        "max_tool_calls": CALLS,
        "stream": True,
        "store": False,
    }
    while True:
        async with session.post(f"{url}/v1/responses", json=asked) as answer:
            if answer.status != 200:
                raise RuntimeError(await answer.text())
            async for line in answer.content:
                if line.startswith(b"event: response.mcp_call.in_progress"):
                    begun.set()
                elif line.startswith(b"event: response.mcp_call."):
                    seen[f"{tool} {line.decode().strip().rpartition('.')[2]}"] += 1


async def _work(port: int, count: int, tools: list[str]) -> Counter[str]:
    seen: Counter[str] = Counter()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    connector = aiohttp.TCPConnector(limit=0)
    # A response's event may hold an output of 64 KiB several times over.
    async with aiohttp.ClientSession(connector=connector, read_bufsize=4 * 1024 * 1024) as session:
        begun = [asyncio.Event() for _ in range(count)]
        loops = [
            asyncio.create_task(_loop(session, f"http://127.0.0.1:{port}", tools[at % len(tools)], event, seen))
            for at, event in enumerate(begun)
        ]
        work: asyncio.Future[Any] = asyncio.gather(*loops)
        everyone: asyncio.Future[Any] = asyncio.gather(*(event.wait() for event in begun))
        await asyncio.wait([work, everyone], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        seen.clear()
        print("begun", flush=True)
        ended: asyncio.Future[Any] = asyncio.create_task(reader.read())
        await asyncio.wait([work, ended], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    return seen


if __name__ == "__main__":
    os.nice(NICENESS)
    print(json.dumps(asyncio.run(_work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")))))
