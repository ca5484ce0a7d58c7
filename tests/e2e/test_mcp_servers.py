"""A declared MCP server with a command: a real controller runs it as a process, a real gateway calls its tools."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

pytestmark = pytest.mark.engines

SERVER = str(Path(__file__).parents[1] / "support" / "mcp_stdio_server.py")


def declare(stack: RoundhouseStack, which: str) -> None:
    """Declare the server. `which`: value of a variable in its environment."""
    server = {"command": [sys.executable, SERVER], "env": {"A_VARIABLE": which}, "timeout_s": 600.0}
    stack.write("servers.yaml", {"models": {}, "mcp_servers": {"known": server}})


async def call(stack: RoundhouseStack, tool: str, **params: Any) -> tuple[int, Any]:
    return (await stack.request("POST", "/tools", {"tool": f"known__{tool}", "params": params})).result


async def answering(stack: RoundhouseStack) -> str | None:
    """Which server answers; None: none does."""
    status, answer = await call(stack, "environment")
    assert status == 502 or "plain_text_response" in answer, answer
    return str(json.loads(answer["plain_text_response"])["A_VARIABLE"]) if status == 200 else None


async def is_answered_by(stack: RoundhouseStack, which: str) -> None:
    async def look() -> bool:
        return await answering(stack) == which

    await until(f"the server {which} answers", look)


async def inflight(stack: RoundhouseStack) -> list[int | None]:
    """Calls in flight at each replica, as the controller knows them."""
    status = await stack.model("mcp:known")
    return [] if status is None else sorted((each.inflight for each in status.replicas), key=lambda n: n or 0)


async def test_an_edit_lets_running_calls_end_and_a_server_that_ends_is_started_again(
    process_stack: RoundhouseStack,
) -> None:
    stack = process_stack
    declare(stack, "first")
    await stack.open()
    await is_answered_by(stack, "first")
    there = stack.root / "there"
    waiting = asyncio.create_task(call(stack, "wait_for", path=str(there)))

    async def is_counted() -> bool:
        return await inflight(stack) == [1]

    await until("the controller knows of the call", is_counted)
    declare(stack, "second")
    await is_answered_by(stack, "second")
    assert not waiting.done()

    async def is_drained() -> bool:
        return await inflight(stack) == [0]

    there.touch()
    assert await waiting == (200, {"plain_text_response": "it is there"})
    await until("the former replica is gone", is_drained)

    status, answer = await call(stack, "end")
    assert (status, answer["error"]["code"]) == (502, "tool_failed")
    await is_answered_by(stack, "second")
