"""The memory of loops of tools: conversations count in the budget for large bodies, and are refused, not waited for."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.server.body_budget import BodyBudget
from tests.fakes.fake_tool_model import Call, Fields, Move
from tests.fakes.gateway_harness import until
from tests.support.gateway_rest import nothing_left
from tests.support.responses import folded
from tests.support.tool_loop import BONN, HANGS, SAYS, Loop, looping

KIB = 1024
LARGE = "long " * 80 * KIB
"""400 KiB, which a loop holds twice."""
ROOM = 4
"""MiB of the budget: loops may hold 2, so two conversations of 400 KiB."""


def decide(body: Fields) -> Move:
    """Wait in a tool once, then answer; answer at once without tools."""
    if not body.get("tools"):
        return Move("Plain.")
    return SAYS if any(each["role"] == "tool" for each in body["messages"]) else HANGS


def budget_of(loop: Loop) -> BodyBudget:
    """The gateway's."""
    return loop.gateway.app.inference.body_budget


async def refused(loop: Loop, **fields: Any) -> tuple[int, str, str | None]:
    """Status, code and `Retry-After`."""
    async with loop.post(input=LARGE, **fields) as answer:
        error = (await answer.json())["error"]
        return answer.status, error["code"], answer.headers.get("retry-after")


async def test_of_fifty_large_conversations_as_many_are_held_as_have_room() -> None:
    async with looping(decide=decide, m={"target_inflight": 4}, body_memory_mib=ROOM) as loop:
        answers = [asyncio.ensure_future(loop.post(input=LARGE).__aenter__()) for _ in range(50)]
        done: list[Any] = []
        await until(lambda: sum(each.done() for each in answers) == 48, "all but two are refused")
        await loop.until_in_tool(2)
        for each in answers:
            if each.done():
                error = (await each.result().json())["error"]
                done.append((each.result().status, error["code"], each.result().headers["retry-after"]))
        assert done == [(503, "tool_rounds_full", "5")] * 48
        held = budget_of(loop).used_bytes
        assert 2 * 2 * len(LARGE) < held <= 2 * 1024 * KIB
        # Others are served meanwhile, with large bodies and with small conversations.
        plain = await loop.client.responses.create(model="m", input="long " * 300 * KIB)
        assert plain.output_text == "Plain."
        loop.release.set()
        assert (await loop.create()).output_text == "It rains in Bonn."
        for each in answers:
            await (await each).read()
        assert sorted([(await each).status for each in answers]) == [200] * 2 + [503] * 48
        await nothing_left(loop.gateway)
        await until(lambda: budget_of(loop).used_bytes == 0, "nothing is held any more")
        assert (await loop.create(input=LARGE)).output_text == "It rains in Bonn."


async def test_a_refusal_says_how_much_there_is() -> None:
    async with looping(SAYS, body_memory_mib=1) as loop:
        async with loop.post(input=LARGE) as answer:
            error = (await answer.json())["error"]
        assert error["message"] == (
            "The conversation has 0.4 MiB, and those of all responses whose tools the gateway runs may have 0.2 MiB "
            "together."
        )
        for fields in ({"stream": True}, {"background": True}):
            assert await refused(loop, **fields) == (503, "tool_rounds_full", "5")
        assert not loop.model.requests
        await nothing_left(loop.gateway)
        assert budget_of(loop).used_bytes == 0


async def test_history_counts_too() -> None:
    async with looping(SAYS, body_memory_mib=2) as loop:
        first = await loop.client.responses.create(model="m", input=LARGE)
        second = await loop.client.responses.create(model="m", input=LARGE, previous_response_id=first.id)
        async with loop.post(input="So?", previous_response_id=second.id) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "tool_rounds_full")
        assert (await loop.create(input="So?", previous_response_id=first.id)).output_text == "It rains in Bonn."


async def test_what_tools_say_makes_a_conversation_grow() -> None:
    """One call says 64 KiB of rain at most."""
    calls = [Call("weather__get", {"city": "Bonn " * 20_000}) for _ in range(12)]
    async with looping(Move(calls=calls), SAYS, body_memory_mib=ROOM) as loop:
        async with loop.post(stream=True) as answer:
            response = folded(await answer.read())
        assert (response["status"], response["error"]["reason"]) == ("failed", "tool_rounds_full")
        assert len(loop.model.requests) == 1
        assert [item["type"] for item in response["output"]] == ["mcp_list_tools", *["mcp_call"] * 12]
        async with loop.post() as answer:
            assert (await answer.json())["output"][-1]["type"] == "message"
        await nothing_left(loop.gateway)
        await until(lambda: budget_of(loop).used_bytes == 0, "nothing is held any more")


async def test_a_client_that_leaves_gives_the_memory_back() -> None:
    async with looping(decide=decide, body_memory_mib=ROOM) as loop:
        for _ in range(3):
            asking = asyncio.create_task(loop.create(input=LARGE))
            await loop.until_in_tool()
            asking.cancel()
            await until(lambda: not loop.servers.running, "the tool is cancelled")
            await until(lambda: budget_of(loop).used_bytes == 0, "nothing is held any more")
        assert BONN in [arguments for _, arguments in loop.servers.calls]
