"""`GET /v1/responses/{id}?stream=true&starting_after=N`: the events of responses in the background."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.responses.event_log import DONE
from gateway.storage.responses.records import StoredResponse
from gateway.streams.client_feed import ClientFeed
from gateway.tenancy.api_keys import ANONYMOUS
from tests.fakes.mock_engine import WORDS
from tests.support.gateway_rest import nothing_left
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import key
from tests.support.raw_http import raw, request
from tests.support.response_state import Site, refusal, site
from tests.support.responses import Fields, events_in, folded
from tests.support.stored import Clock, opened, response, rid
from tests.support.wait import until

__all__ = ["loop_clock"]

NOT_FOUND = (404, "response_not_found", "response_id")


async def read(here: Site, response_id: str, query: str = "stream=true") -> bytes:
    """The whole stream."""
    async with here.gateway.get(f"/v1/responses/{response_id}?{query}") as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        return await answer.read()


async def begun(here: Site, **fields: Any) -> str:
    """The id of a new stream in the background whose client has left."""
    asked = {"model": "m", "input": "x", "stream": True, "background": True, **fields}
    async with here.gateway.post("/v1/responses", asked) as answer:
        line = (await answer.content.readuntil(b"\n\n")).partition(b"data: ")[2]
        response_id: str = json.loads(line)["response"]["id"]
        return response_id


def is_followed(here: Site, response_id: str) -> bool:
    """Whether somebody reads the events of a response that is being made, beside its own client."""
    stream = here.streams.find_response_stream(ANONYMOUS, response_id)
    is_read = stream is not None and not all(isinstance(reader, ClientFeed) for reader in stream.readers)
    return is_read or bool(here.running[response_id].events._waiters)


async def test_the_same_events_during_and_after_as_its_own_client_got() -> None:
    async with site() as here:
        asked = {"model": "m", "input": "x", "stream": True, "background": True, "fault": "pause_until_release"}
        async with here.gateway.post("/v1/responses", asked) as own:
            await until("it runs", lambda: here.running)
            [response_id] = here.running
            reading = asyncio.create_task(read(here, response_id))
            await until("it is read", lambda: is_followed(here, response_id))
            here.engine.release.set()
            first = await own.read()
        assert await reading == first
        await until("it is over", lambda: not here.running)
        assert await read(here, response_id) == first
        assert folded(first)["output"][0]["content"][0]["text"].split() == WORDS
        parts = [part + b"\n\n" for part in first.removesuffix(DONE).split(b"\n\n")[:-1]]
        for number in range(len(parts)):
            later = await read(here, response_id, f"stream=true&starting_after={number}")
            assert later == b"".join(parts[number + 1 :]) + DONE
        assert await read(here, response_id, "stream=true&starting_after=999999") == DONE
        assert (await here.gateway.get(f"/v1/stream/{response_id}?from=7")).content == first[7:]
        # Its stream is kept no longer, and the stored response is asked.
        here.streams.remove_response_stream(ANONYMOUS, response_id)
        for number in range(len(parts)):
            later = await read(here, response_id, f"stream=true&starting_after={number}")
            assert later == b"".join(parts[number + 1 :]) + DONE
        await nothing_left(here.gateway)


async def test_it_is_followed_from_the_middle_by_the_sdk() -> None:
    async with site() as here:
        response_id = await begun(here, fault="pause_until_release")
        stream = await here.client.responses.retrieve(response_id, stream=True, starting_after=4)
        kinds, numbers = [], []
        async for event in stream:
            here.engine.release.set()
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
async def test_one_that_was_made_without_a_stream_is_told_in_one_piece(fields: Fields, last: str) -> None:
    async with site() as here:
        made = await here.make(background=True, **fields)
        live = await read(here, made.id)
        await here.over(made.id)
        assert folded(live) == (await here.gateway.get(f"/v1/responses/{made.id}")).body
        assert events_in(live)[-1]["type"] == last
        if last == "response.completed":
            assert await read(here, made.id) == live
            assert len(events_in(await read(here, made.id, "stream=true&starting_after=1"))) == len(events_in(live)) - 2


async def test_a_stream_that_breaks_or_is_cancelled_ends_for_its_readers_too() -> None:
    async with site() as here:
        broken = await begun(here, fault="die_mid_stream")
        await here.over(broken)
        assert [event["type"] for event in events_in(await read(here, broken))][-2:] == ["error", "response.failed"]
        response_id = await begun(here, fault="pause_until_release")
        reading = asyncio.create_task(read(here, response_id))
        await until("it is read", lambda: is_followed(here, response_id))
        await here.client.responses.cancel(response_id)
        assert events_in(await reading)[-1]["response"]["status"] == "cancelled"
        assert await read(here, response_id) == await reading


async def test_a_reader_that_waits_is_told_that_it_waits(loop_clock: LoopClock) -> None:
    async with site(heartbeat_s=5) as here:
        made = await here.make(background=True, fault="hold")
        reading = asyncio.create_task(read(here, made.id))
        await until("it is read", lambda: here.running[made.id].events._waiters)
        await loop_clock.skip(6)
        here.engine.release.set()
        assert (await reading).startswith(b": heartbeat\n\nevent: response.created\n")


async def test_a_reader_that_takes_nothing_holds_nothing_back() -> None:
    async with site(client_timeout_s=30) as here:
        here.engine.words = ["x" * 20_000] * 200
        response_id = await begun(here, fault="pause_until_release")
        path = f"/v1/responses/{response_id}?stream=true"
        async with raw(here.gateway, receive_bytes=4096) as client:
            client.write(request("GET", path))
            await until("it is read", lambda: is_followed(here, response_id))
            here.engine.release.set()
            assert (await here.over(response_id)).status == "completed"
        assert len(folded(await read(here, response_id))["output"][0]["content"][0]["text"]) == 200 * 20_001


async def test_what_was_not_made_in_the_background_has_no_events() -> None:
    async with site() as here:
        made = await here.make()
        asking = here.client.responses.retrieve(made.id, stream=True)
        assert await refusal(asking) == (400, "invalid_request", "stream")
        assert (await here.client.responses.retrieve(made.id, stream=False)).id == made.id
        late = await here.make(background=True)
        asking = here.client.responses.retrieve(late.id, stream=True, starting_after=-1)
        assert await refusal(asking) == (400, "invalid_request", "starting_after")


async def test_nobody_elses() -> None:
    async with site(keys=(key("a"), key("b", tenant="b"))) as here:
        made = await here.make(background=True, fault="hold")
        theirs = here.as_key("b").responses
        assert await refusal(theirs.retrieve(made.id, stream=True)) == NOT_FOUND
        here.engine.release.set()
        await here.over(made.id)
        assert await refusal(theirs.retrieve(made.id, stream=True)) == NOT_FOUND


async def test_after_a_restart_they_are_the_same(tmp_path: Path) -> None:
    async with site(state=tmp_path) as here:
        response_id = await begun(here)
        await here.over(response_id)
        whole = await read(here, response_id)
    async with site(state=tmp_path) as here:
        assert await read(here, response_id) == whole


async def test_a_reader_of_what_a_killed_gateway_was_making_is_told_the_end(tmp_path: Path) -> None:
    database = opened(tmp_path, Clock(time.time()))
    running = {**response("a", status="in_progress"), "background": True}
    database.save_objects(StoredResponse.of(ANONYMOUS.tenant, "m", running, []))
    database.close()
    async with site(state=tmp_path) as here:
        stream = await read(here, rid("a"), "stream=true&starting_after=57")
        name, data = stream.removesuffix(DONE).removesuffix(b"\n\n").split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert (name, event["sequence_number"]) == (b"event: response.failed", 58)
        assert event["response"]["error"]["reason"] == "gateway_stopping"
        assert len(events_in(await read(here, rid("a")))) == 4
