"""Events, cancellation and compaction of responses: `GET /v1/responses/{id}?stream=true&starting_after=N`, and the
`openai` package."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import openai
import openresponses_types.types as open_responses
import pytest

from assistant.storage.records import StoredResponse
from assistant.storage.responses import DONE
from assistant.streams.resumable_streams import ClientFeed
from gateway.protocols.responses.items import INTRODUCTION
from gateway.protocols.responses.via_chat import SUMMARY_REQUEST
from gateway.tenancy.api_keys import ANONYMOUS
from tests.fakes.gateway_harness import until
from tests.fakes.mock_engine import PROMPT_TOKENS, WORDS
from tests.support import response_state
from tests.support.gateway_rest import nothing_left
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.raw_http import raw, request
from tests.support.response_state import Site, refusal
from tests.support.responses import Fields, as_json, events_in, folded
from tests.support.stored import Clock, opened, response, rid

__all__ = ["loop_clock"]

NOT_FOUND = (404, "response_not_found", "response_id")
TEXT = " ".join(WORDS)
ONE_SLOT: dict[str, Any] = {"target_inflight": 1, "queue_limit": 2}
NO_PREVIOUS = (400, "previous_response_not_found", "previous_response_id")
CALLED: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
]


async def read_events(site: Site, response_id: str, query: str = "stream=true") -> bytes:
    async with site.gateway.get(f"/v1/responses/{response_id}?{query}") as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        return await answer.read()


async def begun(site: Site, **fields: Any) -> str:
    """The id of a new stream in the background whose client has left."""
    body = {"model": "m", "input": "x", "stream": True, "background": True, **fields}
    async with site.gateway.post("/v1/responses", body) as answer:
        line = (await answer.content.readuntil(b"\n\n")).partition(b"data: ")[2]
        response_id: str = json.loads(line)["response"]["id"]
        return response_id


def is_followed(site: Site, response_id: str) -> bool:
    """Whether somebody reads the events of a response that is being made, beside its own client."""
    stream = site.streams.find_response_stream(ANONYMOUS, response_id)
    is_read = stream is not None and not all(isinstance(reader, ClientFeed) for reader in stream.readers)
    return is_read or bool(site.running[response_id].events._waiters)


async def compacted(site: Site, **fields: Any) -> Fields:
    """The compaction as it is told. The SDK's own type takes it, too, but knows no messages of the user's."""
    answer = await site.client.responses.with_raw_response.compact(model="m", **fields)
    assert answer.parse().object == "response.compaction"
    told: Fields = json.loads(answer.text)
    open_responses.CompactResource.model_validate_json(as_json(told), strict=True)
    return told


def kinds(told: Fields) -> list[tuple[str, str | None]]:
    return [(item["type"], item.get("role")) for item in told["output"]]


async def test_the_same_events_during_and_after_as_its_own_client_got(site: Site) -> None:
    body = {"model": "m", "input": "x", "stream": True, "background": True, "fault": "pause_until_release"}
    async with site.gateway.post("/v1/responses", body) as own:
        await until(lambda: bool(site.running), "it runs")
        [response_id] = site.running
        reading = asyncio.create_task(read_events(site, response_id))
        await until(lambda: is_followed(site, response_id), "it is read")
        site.engine.release.set()
        first = await own.read()
    assert await reading == first
    await until(lambda: not site.running, "it is over")
    assert await read_events(site, response_id) == first
    assert folded(first)["output"][0]["content"][0]["text"].split() == WORDS
    parts = [part + b"\n\n" for part in first.removesuffix(DONE).split(b"\n\n")[:-1]]
    for number in range(len(parts)):
        later = await read_events(site, response_id, f"stream=true&starting_after={number}")
        assert later == b"".join(parts[number + 1 :]) + DONE
    assert await read_events(site, response_id, "stream=true&starting_after=999999") == DONE
    assert (await site.gateway.get(f"/v1/stream/{response_id}?from=7")).content == first[7:]
    # Its stream is kept no longer, and the stored response is asked.
    site.streams.remove_response_stream(ANONYMOUS, response_id)
    for number in range(len(parts)):
        later = await read_events(site, response_id, f"stream=true&starting_after={number}")
        assert later == b"".join(parts[number + 1 :]) + DONE
    await nothing_left(site.gateway)


async def test_it_is_followed_from_the_middle_by_the_sdk(site: Site) -> None:
    response_id = await begun(site, fault="pause_until_release")
    stream = await site.client.responses.retrieve(response_id, stream=True, starting_after=4)
    kinds, numbers = [], []
    async for event in stream:
        site.engine.release.set()
        kinds.append(event.type)
        numbers.append(event.sequence_number)
    assert numbers == list(range(5, 5 + len(numbers)))
    assert kinds[-1] == "response.completed"


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({}, "response.completed"),
        ({"fault": "error_json"}, "response.failed"),
        ({"fault": "die_mid_body"}, "response.failed"),
        ({"max_output_tokens": 2}, "response.completed"),
    ],
)
async def test_a_response_that_was_made_without_a_stream_is_told_in_one_piece(
    site: Site, fields: Fields, last: str
) -> None:
    made = await site.make(background=True, **fields)
    live = await read_events(site, made.id)
    await site.over(made.id)
    assert folded(live) == (await site.gateway.get(f"/v1/responses/{made.id}")).body
    assert events_in(live)[-1]["type"] == last
    if last == "response.completed":
        assert await read_events(site, made.id) == live
        assert (
            len(events_in(await read_events(site, made.id, "stream=true&starting_after=1"))) == len(events_in(live)) - 2
        )


async def test_a_stream_that_breaks_or_is_cancelled_ends_for_its_readers_too(site: Site) -> None:
    broken = await begun(site, fault="die_mid_stream")
    await site.over(broken)
    assert [event["type"] for event in events_in(await read_events(site, broken))][-2:] == [
        "error",
        "response.failed",
    ]
    response_id = await begun(site, fault="pause_until_release")
    reading = asyncio.create_task(read_events(site, response_id))
    await until(lambda: is_followed(site, response_id), "it is read")
    await site.client.responses.cancel(response_id)
    assert events_in(await reading)[-1]["response"]["status"] == "cancelled"
    assert await read_events(site, response_id) == await reading


async def test_a_reader_that_waits_is_told_that_it_waits(loop_clock: LoopClock) -> None:
    async with response_state.site(heartbeat_s=5) as site:
        made = await site.make(background=True, fault="hold")
        reading = asyncio.create_task(read_events(site, made.id))
        await until(lambda: site.running[made.id].events._waiters, "it is read")
        await loop_clock.skip(6)
        site.engine.release.set()
        assert (await reading).startswith(b": heartbeat\n\nevent: response.created\n")


async def test_a_reader_that_takes_nothing_holds_nothing_back() -> None:
    async with response_state.site(client_timeout_s=30) as site:
        site.engine.words = ["x" * 20_000] * 200
        response_id = await begun(site, fault="pause_until_release")
        path = f"/v1/responses/{response_id}?stream=true"
        async with raw(site.gateway, receive_bytes=4096) as client:
            client.write(request("GET", path))
            await until(lambda: is_followed(site, response_id), "it is read")
            site.engine.release.set()
            assert (await site.over(response_id)).status == "completed"
        assert len(folded(await read_events(site, response_id))["output"][0]["content"][0]["text"]) == 200 * 20_001


async def test_what_was_not_made_in_the_background_has_no_events(site: Site) -> None:
    made = await site.make()
    asking = site.client.responses.retrieve(made.id, stream=True)
    assert await refusal(asking) == (400, "invalid_request", "stream")
    assert (await site.client.responses.retrieve(made.id, stream=False)).id == made.id
    late = await site.make(background=True)
    asking = site.client.responses.retrieve(late.id, stream=True, starting_after=-1)
    assert await refusal(asking) == (400, "invalid_request", "starting_after")


async def test_after_a_restart_they_are_the_same(tmp_path: Path) -> None:
    async with response_state.site(state=tmp_path) as site:
        response_id = await begun(site)
        await site.over(response_id)
        whole = await read_events(site, response_id)
    async with response_state.site(state=tmp_path) as site:
        assert await read_events(site, response_id) == whole


async def test_a_reader_of_what_a_killed_gateway_was_making_is_told_the_end(tmp_path: Path) -> None:
    database = opened(tmp_path, Clock(time.time()))
    running = {**response("a", status="in_progress"), "background": True}
    database.save_objects(StoredResponse.of(ANONYMOUS.tenant, "m", running, []))
    database.close()
    async with response_state.site(state=tmp_path) as site:
        stream = await read_events(site, rid("a"), "stream=true&starting_after=57")
        name, data = stream.removesuffix(DONE).removesuffix(b"\n\n").split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert (name, event["sequence_number"]) == (b"event: response.failed", 58)
        assert event["response"]["error"]["reason"] == "gateway_stopping"
        assert len(events_in(await read_events(site, rid("a")))) == 4


async def test_a_stream_that_is_cancelled_before_its_first_event_is_told(site: Site) -> None:
    held: dict[str, Any] = {"stream": True, "background": True, "extra_body": {"fault": "hold"}}
    asking = asyncio.ensure_future(site.client.responses.create(model="m", input="x", **held))
    await until(lambda: site.engine.running == 1, "it runs")
    (response_id,) = site.running
    assert (await site.client.responses.cancel(response_id)).status == "cancelled"
    assert (await refusal(asking))[:2] == (409, "state_conflict")
    await nothing_left(site.gateway)


async def test_a_response_whose_client_leaves_before_it_knows_of_it_is_cancelled(site: Site) -> None:
    async with site.held_store():
        leaving = asyncio.create_task(site.make(background=True, fault="hold"))
        await until(lambda: bool(site.running), "it is accepted")
        leaving.cancel()
        await until(lambda: not site.running, "it is over")
    await nothing_left(site.gateway)
    assert not site.engine.requests


async def test_a_running_response_is_cancelled_and_stays_so() -> None:
    async with response_state.site(m=ONE_SLOT) as site:
        running = await site.make(background=True, fault="hold")
        waiting = await site.make(background=True)
        for made in (waiting, running):
            cancelled = await site.client.responses.cancel(made.id)
            assert (cancelled.id, cancelled.status, cancelled.output) == (made.id, "cancelled", [])
            assert await site.client.responses.cancel(made.id) == cancelled
            assert await site.client.responses.retrieve(made.id) == cancelled
        await until(lambda: site.engine.cancelled == 1, "the engine stops")
        assert len(site.engine.requests) == 1
        await nothing_left(site.gateway)
        assert (await site.make()).status == "completed", "its slot is free"


async def test_a_response_that_is_over_is_not_cancelled(site: Site) -> None:
    for made in (await site.make(), await site.over((await site.make(background=True)).id)):
        assert await site.client.responses.cancel(made.id) == made
    assert await refusal(site.client.responses.cancel("resp_x")) == NOT_FOUND


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_that_is_cancelled_ends_with_a_word(site: Site, background: bool) -> None:
    stream = await site.client.responses.create(
        model="m", input="x", stream=True, background=background, extra_body={"fault": "pause_until_release"}
    )
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta" and event.delta == "brown ":
            cancelled = await site.client.responses.cancel(events[0].response.id)
    last = events[-1]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert cancelled == last.response
    assert (cancelled.output_text, cancelled.output[0].to_dict()["status"]) == ("The quick brown ", "incomplete")
    assert await site.client.responses.retrieve(cancelled.id) == cancelled
    await until(lambda: site.engine.cancelled == 1, "the engine stops")
    await nothing_left(site.gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_running_response_is_cancelled_before_it_is_deleted(site: Site, stream: bool) -> None:
    fault = "pause_until_release" if stream else "hold"
    body = {"model": "m", "input": "x", "background": True, "stream": stream, "fault": fault}
    async with site.gateway.post("/v1/responses", **body) as answer:
        await answer.content.readany()
        await until(lambda: site.engine.running == 1, "it runs")
        [run] = site.running.values()
        await site.client.responses.delete(run.context.id)
        assert await refusal(site.client.responses.retrieve(run.context.id)) == NOT_FOUND
        await answer.read()
    await until(lambda: site.engine.cancelled == 1, "the engine stops")
    await nothing_left(site.gateway)
    assert await refusal(site.client.responses.retrieve(run.context.id)) == NOT_FOUND


async def test_the_users_messages_stay_and_a_summary_takes_the_place_of_the_rest(site: Site) -> None:
    made = await compacted(site, input=CALLED, instructions="You are a robot.")
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (PROMPT_TOKENS, len(WORDS))
    assert kinds(made) == [("message", "developer"), ("message", "user"), ("compaction", None)]
    sent = site.engine.requests[-1].body["messages"]
    assert [message["role"] for message in sent][-2:] == ["tool", "user"]
    assert sent[-1]["content"] == SUMMARY_REQUEST
    assert "tools" not in site.engine.requests[-1].body

    output = made["output"]
    await site.make([*output, {"role": "user", "content": "Go on."}])
    said = ["What is the weather?", INTRODUCTION + TEXT, "Go on."]
    assert site.messages()[-3:] == [("user", text) for text in said]
    again = await compacted(site, input=output)
    assert kinds(again) == kinds(made)
    assert site.messages()[-1] == ("user", f"{INTRODUCTION}{TEXT}\n{SUMMARY_REQUEST}")
    await nothing_left(site.gateway)


async def test_a_stored_conversation_is_compacted_and_goes_on(site: Site) -> None:
    first = await site.make("one")
    made = await compacted(site, previous_response_id=first.id)
    assert kinds(made) == [("message", "user"), ("compaction", None)]
    assert [role for role, _ in site.messages()] == ["user", "assistant", "user"]
    output: list[Any] = made["output"]
    second = await site.make([*output, {"role": "user", "content": "two"}])
    await site.make("three", previous_response_id=second.id)
    assert [role for role, _ in site.messages()] == ["user", "user", "user", "assistant", "user"]
    assert await refusal(site.make("x", previous_response_id=made["id"])) == NO_PREVIOUS


async def test_what_cannot_be_compacted(site: Site) -> None:
    ask = site.client.responses.compact
    assert await refusal(ask(model="m")) == (400, "invalid_request", "input")
    assert (await refusal(ask(model="nobody", input="x")))[:2] == (404, "unknown_model")
    assert (await refusal(ask(model=openai.omit, input="x")))[:2] == (400, "invalid_request")  # type: ignore[arg-type]
    streamed = ask(model="m", input="x", extra_body={"stream": True})
    assert await refusal(streamed) == (400, "invalid_request", "stream")
    failed = ask(model="m", input="x", extra_body={"fault": "error_json"})
    assert (await refusal(failed))[:2] == (500, "engine_error")
    foreign: Any = [{"type": "compaction", "encrypted_content": "gAAAAABpM0Yj"}, {"role": "user", "content": "x"}]
    assert await refusal(site.make(foreign)) == (400, "invalid_request", "input[0].encrypted_content")
    site.engine.words = [""]
    site.engine.answers.clear()
    assert (await refusal(ask(model="m", input="x")))[:2] == (502, "engine_error")
    await nothing_left(site.gateway)


async def test_the_engine_stops_when_the_client_leaves() -> None:
    async with response_state.site(m={"notices_leaving": False}) as site:
        leaving = asyncio.create_task(compacted(site, input="x", extra_body={"fault": "hold"}))
        await until(lambda: site.engine.running == 1, "it runs")
        assert site.engine.requests[-1].body["stream"] is True
        leaving.cancel()
        await until(lambda: not site.engine.running, "it is over")
        await compacted(site, input="x")
        await nothing_left(site.gateway)
