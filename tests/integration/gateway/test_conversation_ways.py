"""Conversations by other ways than a plain request: over WebSocket, in the background with events, and compacted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.protocols.responses.compaction import SUMMARY_REQUEST
from tests.fakes.mock_engine import WORDS
from tests.support.gateway_rest import nothing_left
from tests.support.response_sockets import socket
from tests.support.response_state import Site, site
from tests.support.responses import events_in, folded
from tests.support.wait import until

TEXT = " ".join(WORDS)


async def new_conversation(here: Site, *texts: str) -> str:
    """The id of one with these messages of the user's."""
    items: list[Any] = [{"type": "message", "role": "user", "content": text} for text in texts]
    return (await here.client.conversations.create(items=items)).id


async def listed(here: Site, conversation_id: str) -> list[str]:
    """What its messages say, the oldest first."""
    items = [each async for each in here.client.conversations.items.list(conversation_id, order="asc")]
    return [each.to_dict()["content"][0]["text"].strip() for each in items]  # type: ignore[index]


async def test_over_websocket_responses_add_to_a_conversation() -> None:
    async with site() as here, socket(here.gateway) as client:
        made = await new_conversation(here, "zero")
        first = await client.create("one", conversation=made, store=False)
        assert first["conversation"] == {"id": made}
        await client.create("two", conversation={"id": made})
        assert [text for role, text in here.messages() if role == "user"] == ["zero", "one", "two"]
        assert await listed(here, made) == ["zero", "one", TEXT, "two", TEXT]
        await nothing_left(here.gateway)


async def test_over_websocket_what_was_made_in_a_conversation_is_continued_without_it() -> None:
    async with site() as here, socket(here.gateway) as client:
        made = await new_conversation(here, "zero")
        first = await client.create("one", conversation=made, store=False)
        second = await client.create("two", previous_response_id=first["id"])
        assert [role for role, _ in here.messages()] == ["user", "user", "assistant", "user"]
        assert await listed(here, made) == ["zero", "one", TEXT]
        await here.client.conversations.delete(made)
        await here.make("three", previous_response_id=second["id"])
        assert [text for role, text in here.messages() if role == "user"] == ["zero", "one", "two", "three"]


async def test_over_websocket_without_generation_the_input_is_added() -> None:
    async with site() as here, socket(here.gateway) as client:
        made = await new_conversation(here)
        assert (await client.create("one", conversation=made, generate=False))["output"] == []
        await client.send(input=[], conversation=await new_conversation(here), generate=False)
        assert (await client.turn())[-1]["type"] == "response.completed"
        assert not here.engine.requests
        await client.create("two", conversation=made)
        assert here.messages() == [("user", "one"), ("user", "two")]


async def test_over_websocket_a_conversation_is_locked_for_others() -> None:
    async with site() as here, socket(here.gateway) as client, socket(here.gateway) as other:
        made = await new_conversation(here)
        await client.send(input="one", conversation=made, fault="pause_until_release")
        await until("it runs", lambda: here.engine.running)
        await other.send(input="x", conversation=made)
        [told] = await other.turn()
        assert (told["error"]["code"], "retry-after" in told["headers"]) == ("conversation_locked", True)
        here.engine.release.set()
        await client.turn()
        assert (await other.create("two", conversation=made))["status"] == "completed"
        assert await listed(here, made) == ["one", TEXT, "two", TEXT]


async def test_a_response_in_the_background_adds_to_a_conversation_and_tells_its_events() -> None:
    async with site() as here:
        made = await new_conversation(here, "zero")
        asked = {"model": "m", "input": "one", "stream": True, "background": True, "conversation": made}
        async with here.gateway.post("/v1/responses", {**asked, "fault": "late_end"}) as own:
            own_events = b""
            while b"response.completed" not in own_events:
                own_events += await own.content.readuntil(b"\n\n")
            # Its engine still has the connection open: its end is known, and is what others are told.
            assert here.engine.running == 1
            [first] = events_in(own_events + b"data: [DONE]\n\n")[:1]
            response_id = first["response"]["id"]
            told = (await here.gateway.get(f"/v1/responses/{response_id}?stream=true")).content
            assert told == own_events + b"data: [DONE]\n\n"
            assert folded(told)["conversation"] == {"id": made}
            assert await listed(here, made) == ["zero", "one", TEXT]
            here.engine.release.set()
            await own.read()
        await until("it is over", lambda: not here.engine.running)
        assert (await here.gateway.get(f"/v1/responses/{response_id}?stream=true")).content == told


async def test_a_conversation_is_compacted_and_stays_as_it_is() -> None:
    async with site() as here:
        made = await new_conversation(here, "zero")
        running = asyncio.create_task(here.make("one", conversation=made, fault="hold"))
        await until("it runs", lambda: here.engine.running)
        asked = {"model": "m", "input": "two", "conversation": made}
        async with here.gateway.post("/v1/responses/compact", **asked) as answer:
            told = json.loads(await answer.read())
        assert here.messages() == [("user", "zero"), ("user", f"two\n{SUMMARY_REQUEST}")]
        assert [each["type"] for each in told["output"]] == ["message", "message", "compaction"]
        here.engine.release.set()
        await running
        assert await listed(here, made) == ["zero", "one", TEXT]
        other = (await here.client.conversations.create(items=told["output"])).id
        await here.make("three", conversation=other)
        assert [role for role, _ in here.messages()] == ["user"] * 4
