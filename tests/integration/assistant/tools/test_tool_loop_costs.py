"""What loops of tools cost: slots, limits of keys, memory, sessions of the engine, and how metrics count them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.server.body_budget import BodyBudget
from tests.fakes.fake_client import post_at_once
from tests.fakes.fake_tool_model import Call, Fields, Move
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import PendingReply
from tests.support.queueing import Clock, clock, key
from tests.support.response_state import socket
from tests.support.responses import folded
from tests.support.tool_loop import ASKS, BONN, HANGS, RESPONSES, SAYS, WEATHER, Loop, looping
from tests.support.wait import until

__all__ = ["clock"]


LOOPS = 20
SLOTS = 4


def decide(body: Fields) -> Move:
    """Wait in a tool once, then answer; answer at once without tools."""
    if not body.get("tools"):
        return Move("Plain.")
    return SAYS if any(each["role"] == "tool" for each in body["messages"]) else HANGS


async def test_nobody_waits_for_a_tool() -> None:
    async with looping(decide=decide, m={"target_inflight": SLOTS}) as loop:
        loops = [asyncio.ensure_future(loop.create()) for _ in range(LOOPS)]
        await loop.until_in_tool(LOOPS)
        assert loop.model.most_running <= SLOTS
        await nothing_left(loop.gateway)
        # All loops wait for their tools, and all slots are free.
        others = await asyncio.gather(*(loop.client.responses.create(model="m", input="Hi") for _ in range(LOOPS)))
        assert [each.output_text for each in others] == ["Plain."] * LOOPS
        assert loop.servers.running == LOOPS
        loop.release.set()
        responses = await asyncio.gather(*loops)
        assert [each.output_text for each in responses] == ["It rains in Bonn."] * LOOPS
        assert loop.model.most_running <= SLOTS
        await nothing_left(loop.gateway)


async def test_each_round_queues() -> None:
    async with looping(decide=decide, m={"target_inflight": 1, "queue_limit": 1}) as loop:
        pending = asyncio.ensure_future(loop.create())
        await loop.until_in_tool()
        held = asyncio.ensure_future(loop.client.responses.create(model="m", input="Hi", extra_body={"hold": True}))
        assert (await held).output_text == "Plain."
        loop.release.set()
        assert (await pending).output_text == "It rains in Bonn."


@pytest.mark.parametrize("stream", [False, True])
async def test_the_key_pays_for_all_rounds_once(stream: bool, clock: Clock) -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=10_000, requests_per_minute=10, concurrency=1),)
    async with looping(ASKS, ASKS, SAYS, keys=keys) as loop:
        asked = {"model": "m", "input": "x", "tools": [WEATHER], "stream": stream}
        assert (await loop.gateway.post(RESPONSES, asked, key="secret-a")).status == 200
        assert len(loop.model.requests) == 3
        usage = await loop.spent("a")
        assert (usage.token_bucket.level, usage.request_bucket.level) == (10_000 - 45, 9)


async def test_a_client_that_leaves_pays_for_what_came(clock: Clock) -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=10_000),)
    async with looping(ASKS, HANGS, SAYS, keys=keys) as loop:
        pending = asyncio.ensure_future(loop.create())
        await loop.until_in_tool()
        pending.cancel()
        assert (await loop.spent("a")).token_bucket.level == 10_000 - 30, "two rounds of 15 tokens"


async def test_a_client_that_leaves_in_a_round_saves_nothing(clock: Clock) -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=10_000),)
    async with looping(ASKS, Move("It rains.", holds=True), keys=keys) as loop:
        pending = asyncio.ensure_future(loop.create(max_output_tokens=5000))
        await until("the second round runs", lambda: len(loop.model.requests) == 2 and loop.model.running == 1)
        pending.cancel()
        assert 4_900 < (await loop.spent("a")).token_bucket.level < 5_000, "as many as were announced"


async def test_a_client_that_leaves_at_once_is_not_counted_any_more() -> None:
    keys = (key("a", tools=["weather__*"], concurrency=1),)
    async with looping(SAYS, keys=keys) as loop:
        limits, opener = (
            loop.gateway.services.limits,
            loop.gateway.app.inference.open_request(b"POST", b"/v1/responses"),
        )
        fields = {"model": "m", "input": "x", "tools": [WEATHER], "store": False}
        call = post_at_once(opener, RESPONSES, fields, "secret-a")
        assert limits.count_inflight("a") == 1
        call.lose_client()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert limits.count_inflight("a") == 0
        assert (await loop.create()).output_text == "It rains in Bonn."


async def test_a_response_that_is_refused_pays_nothing() -> None:
    keys = (key("a", tools=["weather__*"], tokens_per_minute=1000, requests_per_minute=10),)
    async with looping(SAYS, keys=keys, m={"state": "unloaded"}) as loop:
        asked = {"model": "m", "input": "x", "tools": [WEATHER]}
        reply = await loop.gateway.post(RESPONSES, asked, key="secret-a")
        assert (reply.status, reply.headers["x-ratelimit-limit-tokens"]) == (503, "1000")
        usage = await loop.spent("a")
        assert (usage.token_bucket.level, usage.request_bucket.level) == (1000, 10)


KIB = 1024
LARGE = "long " * 80 * KIB
"""400 KiB, which a loop holds twice."""
ROOM = 4
"""MiB of the budget: loops may hold 2, so two conversations of 400 KiB."""


def budget_of(loop: Loop) -> BodyBudget:
    return loop.gateway.app.inference.body_budget


async def test_of_fifty_large_conversations_as_many_are_held_as_have_room() -> None:
    async with looping(decide=decide, m={"target_inflight": 4}, body_memory_mib=ROOM) as loop:
        answers = [asyncio.ensure_future(loop.post(input=LARGE)) for _ in range(50)]
        await until("all but two are refused", lambda: sum(each.done() for each in answers) == 48)
        await loop.until_in_tool(2)
        refused = [each.result() for each in answers if each.done()]
        assert {(*each.refusal, each.headers["retry-after"]) for each in refused} == {(503, "tool_rounds_full", "5")}
        held = budget_of(loop).used_bytes
        assert 2 * 2 * len(LARGE) < held <= 2 * 1024 * KIB
        # Others are served meanwhile, with large bodies and with small conversations.
        plain = await loop.client.responses.create(model="m", input="long " * 300 * KIB)
        assert plain.output_text == "Plain."
        loop.release.set()
        assert (await loop.create()).output_text == "It rains in Bonn."
        assert sorted([(await each).status for each in answers]) == [200] * 2 + [503] * 48
        await nothing_left(loop.gateway)
        await until("nothing is held any more", lambda: budget_of(loop).used_bytes == 0)
        assert (await loop.create(input=LARGE)).output_text == "It rains in Bonn."


async def test_a_refusal_says_how_much_there_is() -> None:
    async with looping(SAYS, body_memory_mib=1) as loop:
        error = (await loop.post(input=LARGE)).error
        assert error["message"] == (
            "The conversation has 0.4 MiB, and those of all responses whose tools the gateway runs may have 0.2 MiB "
            "together."
        )
        for fields in ({"stream": True}, {"background": True}):
            reply = await loop.post(input=LARGE, **fields)
            assert (*reply.refusal, reply.headers["retry-after"]) == (503, "tool_rounds_full", "5")
        assert not loop.model.requests
        await nothing_left(loop.gateway)
        assert budget_of(loop).used_bytes == 0


async def test_a_history_takes_room_too() -> None:
    async with looping(SAYS, body_memory_mib=2) as loop:
        first = await loop.client.responses.create(model="m", input=LARGE)
        second = await loop.client.responses.create(model="m", input=LARGE, previous_response_id=first.id)
        reply = await loop.post(input="So?", previous_response_id=second.id)
        assert (reply.status, reply.code) == (503, "tool_rounds_full")
        assert (await loop.create(input="So?", previous_response_id=first.id)).output_text == "It rains in Bonn."


async def test_what_tools_say_makes_a_conversation_grow() -> None:
    """One call says 64 KiB of rain at most."""
    calls = [Call("weather__get", {"city": "Bonn " * 20_000}) for _ in range(12)]
    async with looping(Move(calls=calls), SAYS, body_memory_mib=ROOM) as loop:
        response = folded((await loop.post(stream=True)).content)
        assert (response["status"], response["error"]["reason"]) == ("failed", "tool_rounds_full")
        assert len(loop.model.requests) == 1
        assert [item["type"] for item in response["output"]] == ["mcp_list_tools", *["mcp_call"] * 12]
        assert (await loop.post()).body["output"][-1]["type"] == "message"
        await nothing_left(loop.gateway)
        await until("nothing is held any more", lambda: budget_of(loop).used_bytes == 0)


async def test_a_client_that_leaves_gives_the_memory_back() -> None:
    async with looping(decide=decide, body_memory_mib=ROOM) as loop:
        for _ in range(3):
            pending = asyncio.create_task(loop.create(input=LARGE))
            await loop.until_in_tool()
            pending.cancel()
            await until("the tool is cancelled", lambda: not loop.servers.running)
            await until("nothing is held any more", lambda: budget_of(loop).used_bytes == 0)
        assert BONN in [arguments for _, arguments in loop.servers.calls]


CLIENTS = (
    *("requests_total", "request_outcomes_total", "refusals_total", "client_disconnects_total"),
    *("broken_answers_total", "key_requests_total", "client_requests_total"),
    *("request_duration_seconds_count", "first_byte_seconds_count"),
)
"""What counts requests of clients, without the gateway's prefix."""
ENGINES = (
    *("rounds_total", "tokens_total", "key_tokens_total", "request_tokens_count", "time_to_first_token_seconds_count"),
    *("time_per_output_token_seconds_count", "unreported_tokens_total"),
)
"""What counts the work of engines."""


async def counted(loop: Loop, names: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """The samples of these names that are not 0, by name and the values of their labels but `model` and `route`."""
    await nothing_left(loop.gateway)
    samples: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(await loop.gateway.metrics()):
        for sample in family.samples:
            name = sample.name.removeprefix("roundhouse_gateway_")
            if name in names and sample.value:
                labels = [value for label, value in sorted(sample.labels.items()) if label not in ("model", "route")]
                samples[name, *labels] = sample.value
    return samples


def post(loop: Loop, **fields: Any) -> PendingReply:
    body = {"model": "m", "input": "Weather?", "tools": [WEATHER], **fields}
    return loop.gateway.post(RESPONSES, body, key="secret-a", headers={"user-agent": "app"})


KEYS = (key("a", tools=["weather__*"]),)


@pytest.mark.parametrize("stream", [False, True])
async def test_three_rounds_are_one_request(stream: bool) -> None:
    async with looping(ASKS, ASKS, SAYS, keys=KEYS) as loop:
        await post(loop, stream=stream)
        assert await counted(loop, CLIENTS) == {
            ("requests_total", "200"): 1,
            ("request_outcomes_total", "completed"): 1,
            ("key_requests_total", "a"): 1,
            ("client_requests_total", "app"): 1,
            ("request_duration_seconds_count",): 1,
            ("first_byte_seconds_count",): 1,
        }
        assert await counted(loop, ENGINES) == {
            ("rounds_total", "completed"): 3,
            ("tokens_total", "in"): 30,
            ("tokens_total", "out"): 15,
            ("key_tokens_total", "in", "a"): 30,
            ("key_tokens_total", "out", "a"): 15,
            ("request_tokens_count", "in"): 3,
            ("request_tokens_count", "out"): 3,
            ("time_to_first_token_seconds_count",): 3,
            ("time_per_output_token_seconds_count",): 3,
        }


async def test_a_round_that_is_refused_is_one_refusal() -> None:
    async with looping(SAYS, keys=KEYS, m={"state": "unloaded"}) as loop:
        assert (await post(loop)).status == 503
        assert await counted(loop, CLIENTS) == {
            ("requests_total", "503"): 1,
            ("request_outcomes_total", "errored"): 1,
            ("refusals_total", "model_not_loaded"): 1,
            ("key_requests_total", "a"): 1,
            ("client_requests_total", "app"): 1,
            ("request_duration_seconds_count",): 1,
            ("first_byte_seconds_count",): 1,
        }
        assert await counted(loop, ENGINES) == {("rounds_total", "errored"): 1}


async def test_a_client_that_leaves_in_a_round_is_one_that_left() -> None:
    async with looping(ASKS, Move("It rains.", holds=True), keys=KEYS) as loop:
        pending = asyncio.ensure_future(post(loop))
        await until("the second round runs", lambda: len(loop.model.requests) == 2 and loop.model.running == 1)
        pending.cancel()
        await until("the engine stops", lambda: loop.model.cancelled == 1)
        assert await counted(loop, CLIENTS) == {
            ("requests_total", "499"): 1,
            ("request_outcomes_total", "cancelled"): 1,
            ("client_disconnects_total",): 1,
            ("key_requests_total", "a"): 1,
            ("client_requests_total", "app"): 1,
            ("request_duration_seconds_count",): 1,
        }
        rounds = await counted(loop, ("rounds_total",))
        assert rounds == {("rounds_total", "completed"): 1, ("rounds_total", "cancelled"): 1}


async def test_a_round_that_fails_late_breaks_one_answer_off() -> None:
    async with looping(ASKS, SAYS, keys=KEYS) as loop:
        breaks = Move("It rains in Bonn.", breaks=True)
        loop.model.decide = lambda _: ASKS if len(loop.model.requests) == 1 else breaks
        reply = await post(loop, stream=True)
        assert reply.status == 200
        assert b"response.failed" in reply.content
        told = await counted(loop, CLIENTS)
        assert told[("broken_answers_total", "engine_disconnected")] == 1
        assert told[("request_outcomes_total", "errored")] == told[("requests_total", "200")] == 1
        assert not [name for name in told if name[0] == "refusals_total"]
        rounds = await counted(loop, ("rounds_total",))
        assert rounds == {("rounds_total", "completed"): 1, ("rounds_total", "errored"): 1}


SESSIONS: Fields = {"session_cache": SLOTS, "session_binding": "slot", "target_inflight": SLOTS}


async def create(loop: Loop, headers: dict[str, str] | None = None, **fields: Any) -> tuple[str | None, Fields]:
    body = {"model": "m", "input": "Weather?", "tools": [WEATHER], **fields}
    reply = await loop.gateway.post(RESPONSES, body, headers=headers)
    return reply.headers.get("x-session"), reply.success


def slots_of(loop: Loop) -> list[int | None]:
    """The slot that each round has named to the engine."""
    return [request.get("id_slot") for request in loop.model.requests]


async def turns_of(loop: Loop) -> list[str]:
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
        reply = await loop.gateway.post(RESPONSES, **body)
        assert (reply.status, reply.headers.get("x-session")) == (503, None)
