"""Sessions of loops of tools: all rounds go where the conversation's cache is, and the answer says so."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.spec import ToolCall, ToolResult
from tests.fakes.fake_controller import route
from tests.fakes.fake_tool_model import Move
from tests.fakes.fake_tool_servers import FakeTool, install
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.clockwork_caller import DONE_SAID
from tests.support.gateway_rest import nothing_left
from tests.support.llama_servers import needed
from tests.support.response_sockets import socket
from tests.support.responses import Fields
from tests.support.responses_gateway import TOKEN, agent_engine
from tests.support.tool_loop import ASKS, RESPONSES, SAYS, WEATHER, Loop, looping
from tests.support.worker_process import Worker

SLOTS = 4
SESSIONS: Fields = {"session_cache": SLOTS, "session_binding": "slot", "target_inflight": SLOTS}
PARIS: Fields = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
LONG = "How is the weather? " + "hello " * 200


async def create(loop: Loop, headers: dict[str, str] | None = None, **fields: Any) -> tuple[str | None, Fields]:
    """`X-Session`, and the response."""
    body = {"model": "m", "input": "Weather?", "tools": [WEATHER], **fields}
    reply = await loop.gateway.post(RESPONSES, body, headers=headers)
    return reply.headers.get("x-session"), reply.success


def slots_of(loop: Loop) -> list[int | None]:
    """The slot that each round has named to the engine."""
    return [request.get("id_slot") for request in loop.model.requests]


async def turns_of(loop: Loop) -> list[str]:
    """The samples of sessions' turns."""
    await nothing_left(loop.gateway)
    told = (await loop.gateway.metrics()).splitlines()
    return sorted(line for line in told if line.startswith("roundhouse_gateway_session_turns_total"))


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {}),
        ({}, {"store": False}),
        ({}, {"stream": True}),
        ({}, {"session_id": "s"}),
        ({}, {"prompt_cache_key": "s"}),
        ({"x-conversation-id": "s::m"}, {}),
    ],
)
async def test_all_rounds_are_turns_of_one_session(headers: dict[str, str], fields: dict[str, Any]) -> None:
    async with looping(ASKS, ASKS, SAYS, m=SESSIONS) as loop:
        decision, _ = await create(loop, headers, **fields)
        assert decision == "new", "that of the first round"
        assert slots_of(loop) == [3, 3, 3]
        assert await turns_of(loop) == [
            'roundhouse_gateway_session_turns_total{decision="new",model="m"} 1.0',
            'roundhouse_gateway_session_turns_total{decision="reused",model="m"} 2.0',
        ]


async def test_a_response_that_continues_it_is_of_the_same_session() -> None:
    """Two calls, one after the other, are read back as they were asked, or the session would be rebuilt."""
    async with looping(ASKS, ASKS, SAYS, ASKS, SAYS, m=SESSIONS) as loop:
        first, response = await create(loop)
        second, later = await create(loop, input="And now?", previous_response_id=response["id"])
        third, _ = await create(loop, input="So?", previous_response_id=later["id"], tools=[])
        assert [first, second, third] == ["new", "reused", "reused"]
        assert slots_of(loop) == [3] * 6
        assert [each["role"] for each in loop.messages()] == [
            *("user", "assistant", "tool", "assistant", "tool", "assistant"),
            *("user", "assistant", "tool", "assistant", "user"),
        ]


async def test_a_conversation_is_the_session() -> None:
    async with looping(ASKS, SAYS, ASKS, SAYS, m=SESSIONS) as loop:
        conversation = (await loop.client.conversations.create()).id
        decisions = [(await create(loop, conversation=conversation))[0] for _ in range(2)]
        assert decisions == ["new", "reused"]
        assert slots_of(loop) == [3] * 4


async def test_a_session_over_websocket() -> None:
    async with looping(ASKS, SAYS, ASKS, SAYS, m=SESSIONS) as loop, socket(loop.gateway) as client:
        first = await client.create("Weather?", tools=[WEATHER], store=False)
        await client.create("And?", previous_response_id=first["id"], tools=[WEATHER], store=False)
        assert slots_of(loop) == [3] * 4
        assert await turns_of(loop) == [
            'roundhouse_gateway_session_turns_total{decision="new",model="m"} 1.0',
            'roundhouse_gateway_session_turns_total{decision="reused",model="m"} 3.0',
        ]


async def test_two_loops_are_two_sessions() -> None:
    async with looping(ASKS, SAYS, ASKS, SAYS, m=SESSIONS) as loop:
        assert [(await create(loop))[0] for _ in range(2)] == ["new", "new"]
        assert slots_of(loop) == [3, 3, 2, 2]


async def test_a_model_without_sessions_tells_nothing() -> None:
    async with looping(ASKS, SAYS) as loop:
        assert (await create(loop, session_id="s"))[0] is None
        assert slots_of(loop) == [None, None]
        assert [request.get("session_id") for request in loop.model.requests] == ["s", "s"], "passed on as ever"


async def test_an_answer_without_rounds_says_nothing_of_a_session() -> None:
    async with looping(Move(error="too hot"), m={**SESSIONS, "state": "unloaded"}) as loop:
        body = {"model": "m", "input": "Weather?", "tools": [WEATHER], "session_id": "s"}
        async with loop.gateway.post(RESPONSES, **body) as answer:
            assert (answer.status, answer.headers.get("x-session")) == (503, None)


# With real llama-servers


@contextlib.asynccontextmanager
async def agents(folder: Path, count: int) -> AsyncIterator[tuple[GatewayHarness, list[Worker]]]:
    """A gateway whose model `m` is so many llama-servers of four slots, which call a tool and answer with its result.
    While the tool runs, eight others ask for something else."""
    needed("embedded")
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for number in range(count):
            place = folder / str(number)
            place.mkdir()
            workers.append(stack.enter_context(agent_engine("embedded", place, "--cache-ram", "0")))
        for worker in workers:
            worker.ready()
        gateway = await stack.enter_async_context(gateway_harness())
        urls = [f"http://127.0.0.1:{worker.port}" for worker in workers]
        made = route("m", urls, token=TOKEN, served_name="inner-agent", apis=("/v1/chat/completions",), **SESSIONS)
        await gateway.publish(made.model_copy(update={"backend": "llama_server"}))
        others = iter(range(1000))

        async def sunny(call: ToolCall) -> ToolResult:
            for _ in range(2 * SLOTS):
                said = f"{next(others)} other " + "hello " * 50
                messages = [{"role": "user", "content": said}]
                async with gateway.post("/v1/chat/completions", model="m", messages=messages, max_tokens=1) as answer:
                    assert answer.status == 200, await answer.text()
            return ToolResult(f"sunny in {call.arguments['city']}")

        install(gateway, FakeTool("weather__get", sunny, PARIS))
        yield gateway, workers


@pytest.mark.engines
@pytest.mark.embedded
@pytest.mark.parametrize("count", [1, 2])
async def test_the_second_round_finds_the_first_in_the_engines_cache(tmp_path: Path, count: int) -> None:
    async with agents(tmp_path, count) as (gateway, _):
        decisions, prompts, evaluated = [], [], []
        previous: Fields = {}
        for number in range(2):
            asked = {"model": "m", "input": f"{number} {LONG}", "tools": [WEATHER], "temperature": 0, **previous}
            async with gateway.post(RESPONSES, **asked) as answer:
                response = await answer.json()
                assert answer.status == 200, response
            assert [item["type"] for item in response["output"]][-2:] == ["mcp_call", "message"]
            assert response["output"][-1]["content"][0]["text"] == DONE_SAID
            usage = response["usage"]
            decisions.append(answer.headers.get("x-session"))
            prompts.append(usage["input_tokens"])
            evaluated.append(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])
            previous = {"previous_response_id": response["id"]}
        assert decisions == ["new", "reused"]
        # Of two rounds, one and the few tokens of a call and its result: the message is computed once.
        assert prompts[0] // 2 <= evaluated[0] <= prompts[0] // 2 + 60
        # Of a longer conversation, again the new message alone.
        assert prompts[1] > 2 * prompts[0]
        assert evaluated[1] <= evaluated[0] + 60
