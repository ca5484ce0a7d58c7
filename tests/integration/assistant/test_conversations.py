"""Conversations through the `openai` package: made, continued, read, changed, deleted, each for its own tenant; over
WebSocket, in the background, compacted, and in a process that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.conversations import ConversationItem

from assistant.storage.responses import DONE
from gateway.protocols.responses.via_chat import SUMMARY_REQUEST
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines
from tests.fakes.mock_engine import WORDS
from tests.integration.assistant.test_responses_process import process_site
from tests.support import response_state
from tests.support.gateway_rest import nothing_left
from tests.support.queueing import clock, key
from tests.support.response_state import Site, refusal, socket
from tests.support.responses import folded
from tests.support.wait import until

__all__ = ["clock"]


TEXT = " ".join(WORDS)
NOT_FOUND = (404, "conversation_not_found", "conversation_id")
NOT_CONTINUABLE = (404, "conversation_not_found", "conversation")
LOCKED = (400, "conversation_locked", "conversation")


def message(text: str, role: str = "user") -> Any:
    return {"type": "message", "role": role, "content": text}


def text_of(item: ConversationItem) -> str:
    content: Any = item.to_dict()["content"]
    return str(content[0]["text"]).strip()


async def texts(client: openai.AsyncOpenAI, conversation_id: str, **asked: Any) -> list[str]:
    listed = client.conversations.items.list(conversation_id, **{"order": "asc", **asked})
    return [text_of(item) async for item in listed]


async def test_a_conversation_is_made_read_changed_and_deleted(site: Site) -> None:
    conversations = site.client.conversations
    made = await conversations.create(metadata={"topic": "demo"}, items=[message("one"), message("two", "assistant")])
    assert made.id.startswith("conv_")
    assert (made.object, made.metadata) == ("conversation", {"topic": "demo"})
    assert await conversations.retrieve(made.id) == made
    changed = await conversations.update(made.id, metadata={"topic": "other"})
    assert changed.metadata == {"topic": "other"}
    assert await conversations.retrieve(made.id) == changed
    assert await texts(site.client, made.id) == ["one", "two"]
    deleted = await conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    for pending in (
        conversations.retrieve(made.id),
        conversations.update(made.id, metadata={}),
        conversations.delete(made.id),
        conversations.items.list(made.id),
        conversations.items.create(made.id, items=[message("x")]),
    ):
        assert await refusal(pending) == NOT_FOUND
    assert await refusal(site.make("x", conversation=made.id)) == NOT_CONTINUABLE
    empty = await conversations.create()
    assert (empty.metadata, await texts(site.client, empty.id)) == ({}, [])


async def test_responses_go_on_from_a_conversation_and_add_to_it(site: Site) -> None:
    made = await site.client.conversations.create(items=[message("Be brief.", "developer")])
    first = await site.make("one", conversation=made.id)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    assert site.messages() == [("system", "Be brief."), ("user", "one")]
    second = await site.make("two", conversation={"id": made.id})
    assert site.messages()[1:] == [("user", "one"), ("assistant", TEXT), ("user", "two")]
    assert await texts(site.client, made.id) == ["Be brief.", "one", TEXT, "two", TEXT]
    listed = [item async for item in site.client.conversations.items.list(made.id, order="asc")]
    assert [item.id for item in listed][2::2] == [first.output[0].id, second.output[0].id]
    assert await site.client.responses.retrieve(second.id) == second
    # All that it was made of, as with `previous_response_id`.
    items = [item async for item in site.client.responses.input_items.list(second.id, order="asc")]
    assert [item.id for item in items] == [item.id for item in listed[:4]]


@pytest.mark.parametrize("how", ["stream", "background", "unstored"])
async def test_every_kind_of_response_adds_to_its_conversation(how: str, site: Site) -> None:
    made = await site.client.conversations.create()
    if how == "stream":
        stream = await site.client.responses.create(model="m", input="one", stream=True, conversation=made.id)
        assert [event.type async for event in stream][-1] == "response.completed"
    elif how == "background":
        queued = await site.make("one", conversation=made.id, background=True)
        await site.over(queued.id)
    else:
        response = await site.make("one", conversation=made.id, store=False)
        assert (await refusal(site.client.responses.retrieve(response.id)))[1] == "response_not_found"
    assert await texts(site.client, made.id) == ["one", TEXT]
    assert (await site.make([], conversation=made.id)).output_text == TEXT
    assert [role for role, _ in site.messages()] == ["user", "assistant"]


async def test_what_the_last_event_told_may_be_counted_on(site: Site) -> None:
    """The engine's connection may end later than its stream: the conversation is free, and has the answer."""
    made = await site.client.conversations.create()
    stream = await site.client.responses.create(
        model="m", input="one", stream=True, conversation=made.id, extra_body={"fault": "late_end"}
    )
    async for event in stream:
        if event.type == "response.completed":
            break
    assert site.engine.running == 1
    await site.make("two", conversation=made.id)
    assert site.messages()[0] == ("user", "one")
    assert len(site.messages()) == 3
    site.engine.release.set()
    await until("the connection ends", lambda: site.engine.running == 0)
    assert len(await texts(site.client, made.id)) == 4


async def test_the_events_of_a_response_in_the_background_are_whole_while_its_engine_has_not_ended(site: Site) -> None:
    made = (await site.client.conversations.create(items=[message("zero")])).id
    body = {"model": "m", "input": "one", "stream": True, "background": True, "conversation": made}
    async with site.gateway.post("/v1/responses", {**body, "fault": "late_end"}) as own:
        sent = b""
        while b"response.completed" not in sent:
            sent += await own.content.readuntil(b"\n\n")
        assert site.engine.running == 1
        path = f"/v1/responses/{folded(sent + DONE)['id']}?stream=true"
        assert (await site.gateway.get(path)).content == sent + DONE
        assert folded(sent + DONE)["conversation"] == {"id": made}
        assert await texts(site.client, made) == ["zero", "one", TEXT]
        site.engine.release.set()
        await own.read()
    await until("it is over", lambda: not site.engine.running)
    assert (await site.gateway.get(path)).content == sent + DONE


async def test_one_response_at_a_time_adds_to_a_conversation(site: Site) -> None:
    made = await site.client.conversations.create(items=[message("zero")])
    other = await site.client.conversations.create()
    [zero] = [item async for item in site.client.conversations.items.list(made.id)]
    assert zero.id is not None
    first = asyncio.create_task(site.make("one", conversation=made.id, fault="hold"))
    await until("it runs", lambda: site.engine.running == 1)
    items = site.client.conversations.items
    for pending in (
        site.make("two", conversation=made.id),
        site.make("two", conversation=made.id, background=True),
        items.create(made.id, items=[message("x")]),
        items.delete(zero.id, conversation_id=made.id),
    ):
        assert await refusal(pending) == LOCKED
    assert (await site.gateway.post("/v1/responses", model="m", input="x", conversation=made.id)).headers["retry-after"]
    # Reading it, counting with it, naming it and another one are free.
    assert await texts(site.client, made.id) == ["zero"]
    counted = await site.client.responses.input_tokens.count(model="m", input="x", conversation=made.id)
    assert counted.input_tokens
    await site.client.conversations.update(made.id, metadata={"a": "b"})
    await site.make("two", conversation=other.id)
    site.engine.release.set()
    await first
    await site.make("three", conversation=made.id)
    assert await texts(site.client, made.id) == ["zero", "one", TEXT, "three", TEXT]


async def test_a_response_that_fails_or_is_left_adds_nothing_and_frees_the_conversation(site: Site) -> None:
    made = await site.client.conversations.create()
    await refusal(site.make("one", conversation=made.id, fault="error_json"))
    await refusal(site.make("one", conversation=made.id, top_p="x"))
    leaving = asyncio.create_task(site.make("one", conversation=made.id, fault="hold"))
    await until("it runs", lambda: site.engine.running == 1)
    leaving.cancel()
    await until("it is over", lambda: site.engine.running == 0)
    queued = await site.make("one", conversation=made.id, background=True, fault="hold")
    await site.client.responses.cancel(queued.id)
    assert await texts(site.client, made.id) == []
    await site.make("two", conversation=made.id)
    assert await texts(site.client, made.id) == ["two", TEXT]


async def test_a_conversation_deleted_under_a_response_stays_deleted(site: Site) -> None:
    made = await site.client.conversations.create()
    running = asyncio.create_task(site.make("one", conversation=made.id, fault="hold"))
    await until("it runs", lambda: site.engine.running == 1)
    await site.client.conversations.delete(made.id)
    site.engine.release.set()
    response = await running
    assert await site.client.responses.retrieve(response.id) == response
    assert await refusal(site.client.conversations.retrieve(made.id)) == NOT_FOUND


async def test_a_response_of_a_conversation_may_be_continued_by_itself(site: Site) -> None:
    made = await site.client.conversations.create(items=[message("zero")])
    first = await site.make("one", conversation=made.id)
    await site.make("two", conversation=made.id)
    branch = await site.make("other", previous_response_id=first.id)
    before = [("user", "zero"), ("user", "one"), ("assistant", TEXT), ("user", "other")]
    assert site.messages() == before
    assert "other" not in await texts(site.client, made.id)
    [zero] = [item async for item in site.client.conversations.items.list(made.id, order="asc", limit=1)][:1]
    await site.client.conversations.items.delete(str(zero.id), conversation_id=made.id)
    await site.make("more", previous_response_id=branch.id)
    assert site.messages() == [*before[1:], ("assistant", TEXT), ("user", "more")]
    await site.client.conversations.delete(made.id)
    pending = site.make("x", previous_response_id=branch.id)
    assert await refusal(pending) == (400, "previous_response_not_found", "previous_response_id")
    made_of = [item async for item in site.client.responses.input_items.list(branch.id)]
    assert len(made_of) == 3, "what is left of it"


async def test_items_are_listed_by_pages_read_and_deleted(site: Site) -> None:
    items = site.client.conversations.items
    made = await site.client.conversations.create()
    added = await items.create(made.id, items=[message(str(number)) for number in range(5)])
    assert [text_of(item) for item in added.data] == ["0", "1", "2", "3", "4"]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
    assert await texts(site.client, made.id, limit=2) == ["0", "1", "2", "3", "4"], "page by page"
    page = await items.list(made.id, limit=2)
    assert ([text_of(item) for item in page.data], page.has_more) == (["4", "3"], True)
    second, third = (str(item.id) for item in added.data[1:3])
    after = await items.list(made.id, after=third, order="asc")
    assert [text_of(item) for item in after.data] == ["3", "4"]
    assert text_of(await items.retrieve(second, conversation_id=made.id)) == "1"
    assert (await items.delete(second, conversation_id=made.id)).id == made.id
    assert await texts(site.client, made.id) == ["0", "2", "3", "4"]
    no_item = (404, "conversation_item_not_found", "item_id")
    assert await refusal(items.retrieve(second, conversation_id=made.id)) == no_item
    assert await refusal(items.delete(second, conversation_id=made.id)) == no_item
    assert await refusal(items.list(made.id, after=second)) == (400, "invalid_request", "after")
    assert await refusal(items.list(made.id, limit=101)) == (400, "invalid_request", "limit")


async def test_calls_of_tools_and_their_results_pass_through_a_conversation(site: Site) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    made = await site.client.conversations.create(items=[message("find"), call])  # type: ignore[list-item]
    result: Any = {"type": "function_call_output", "call_id": "c1", "output": "found"}
    added = await site.client.conversations.items.create(made.id, items=[result])
    assert [item.type for item in added.data] == ["function_call_output"]
    await site.make("and?", conversation=made.id)
    sent = site.engine.requests[-1].body["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool", "user"]
    # A result whose call is nowhere may be added, and cannot be answered.
    orphan: Any = {"type": "function_call_output", "call_id": "c2", "output": "x"}
    lonely = await site.client.conversations.create(items=[orphan])
    assert await refusal(site.make("x", conversation=lonely.id)) == (400, "invalid_request", "conversation.call_id")


async def test_items_are_referred_to_and_copied_by_their_ids(site: Site) -> None:
    made = await site.client.conversations.create(items=[message("one")])
    [one] = [item async for item in site.client.conversations.items.list(made.id)]
    reference: Any = {"type": "item_reference", "id": one.id}
    await site.client.responses.create(model="m", input=[reference, message("two")])
    assert site.messages() == [("user", "one"), ("user", "two")]
    copied = await site.client.conversations.create(items=[reference])
    assert await texts(site.client, copied.id) == ["one"]
    again: Any = one.to_dict()
    pending = site.client.conversations.items.create(made.id, items=[again])
    assert await refusal(pending) == (400, "invalid_request", "items[0].id")
    # In a response's input it is another item, with an id of its own.
    await site.client.responses.create(model="m", input=[again], conversation=made.id)
    assert await texts(site.client, made.id) == ["one", "one", TEXT]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"items": "x"}, "items"),
        ({"items": ["x"]}, "items[0]"),
        ({"items": [message(str(number)) for number in range(1001)]}, "items"),
        ({"items": [{"type": "web_search_call"}]}, "items[0].type"),
        ({"items": [{"role": "user", "content": 7}]}, "items[0].content"),
        (
            {"items": [{"role": "user", "content": "x", "id": "a"}, {"role": "user", "content": "x", "id": "a"}]},
            "items[1].id",
        ),
        ({"items": [{"type": "item_reference", "id": "msg_none"}]}, "items[0].id"),
        ({"items": [{"role": "user", "content": "x", "id": "\ud800"}]}, "items[0].id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "\ud800"}}, "metadata"),
    ],
)
async def test_what_no_conversation_may_hold_is_refused_at_its_place(
    fields: dict[str, Any], place: str, site: Site
) -> None:
    reply = await site.gateway.post("/v1/conversations", **fields)
    error = reply.error
    assert (reply.status, error["code"], error["param"]) == (400, "invalid_request", place)


async def test_a_request_names_one_past_only(site: Site) -> None:
    made = await site.client.conversations.create()
    first = await site.make("one")
    wrong = (400, "invalid_request", "conversation")
    assert await refusal(site.make("x", conversation=made.id, previous_response_id=first.id)) == wrong
    assert await refusal(site.make("x", conversation=7)) == wrong
    assert await refusal(site.make("x", conversation={})) == (400, "invalid_request", "conversation.id")
    assert await refusal(site.make([], conversation=made.id)) == (400, "invalid_request", "input")
    assert await refusal(site.make("x", conversation="conv_none")) == NOT_CONTINUABLE
    assert await refusal(site.make("x", conversation="conv\x00")) == NOT_CONTINUABLE
    assert (await site.gateway.request("POST", "/v1/conversations", data=b"[1")).refusal == (400, "invalid_json")


async def test_of_another_tenant_nothing_is_told_apart_from_nothing() -> None:
    keys = (key("mine", tenant="t"), key("theirs", tenant="u"), key("ours", tenant="t"))
    async with response_state.site(keys=keys) as site:
        made = await site.client.conversations.create(items=[message("one")])
        [item] = [item async for item in site.client.conversations.items.list(made.id)]
        assert (await site.as_key("ours").conversations.retrieve(made.id)).id == made.id
        theirs = site.as_key("theirs")
        for conversation_id in (made.id, "conv_none"):
            for pending in (
                theirs.conversations.retrieve(conversation_id),
                theirs.conversations.update(conversation_id, metadata={}),
                theirs.conversations.delete(conversation_id),
                theirs.conversations.items.list(conversation_id),
                theirs.conversations.items.create(conversation_id, items=[message("x")]),
                theirs.conversations.items.retrieve(str(item.id), conversation_id=conversation_id),
                theirs.conversations.items.delete(str(item.id), conversation_id=conversation_id),
            ):
                assert await refusal(pending) == NOT_FOUND
            continuing = theirs.responses.create(model="m", input="x", conversation=conversation_id)
            assert await refusal(continuing) == NOT_CONTINUABLE
        reference: Any = {"type": "item_reference", "id": item.id}
        assert (await refusal(theirs.conversations.create(items=[reference])))[2] == "items[0].id"
        # Nor does a lock of one tenant hold another's, who may name any id.
        holding = asyncio.create_task(site.make("one", conversation=made.id, fault="hold"))
        await until("it runs", lambda: site.engine.running == 1)
        assert await refusal(theirs.responses.create(model="m", input="x", conversation=made.id)) == NOT_CONTINUABLE
        site.engine.release.set()
        await holding


async def test_a_key_for_some_models_sees_where_these_answered_last() -> None:
    keys = (key("all", tenant="t"), key("some", tenant="t", models=("n",)))
    async with engines(1) as (other,), response_state.site(route("n", [other.url]), keys=keys) as site:
        made = await site.client.conversations.create()
        some = site.as_key("some")
        await some.responses.create(model="n", input="one", conversation=made.id)
        await site.make("two", conversation=made.id)
        assert await refusal(some.conversations.retrieve(made.id)) == NOT_FOUND
        pending = some.responses.create(model="n", input="three", conversation=made.id)
        assert await refusal(pending) == NOT_CONTINUABLE
        await site.client.responses.create(model="n", input="three", conversation=made.id)
        assert len(await texts(some, made.id)) == 6


async def test_where_nothing_is_stored_there_are_no_conversations() -> None:
    async with response_state.site(responses_retention_h=0) as site:
        assert await refusal(site.client.conversations.create()) == (403, "storage_disabled", None)
        assert await refusal(site.client.conversations.retrieve("conv_x")) == NOT_FOUND
        assert await refusal(site.make("x", conversation="conv_x")) == NOT_CONTINUABLE
        assert await refusal(site.client.conversations.items.list("conv_x")) == NOT_FOUND


async def test_a_conversation_is_unlocked_though_its_key_has_another_tenant_by_then() -> None:
    first, moved = key("a"), key("a", tenant="b")
    async with response_state.site(keys=(first,), m={"target_inflight": 1}) as site:
        locks = site.gateway.assistant.responses.conversation_locks
        conversation = await site.client.conversations.create()
        site.engine.release.clear()
        running = asyncio.create_task(site.make("one", fault="hold"))
        await until("the slot is taken", lambda: site.engine.running)
        waiting = asyncio.create_task(site.make("two", conversation=conversation.id))
        await until("it waits", lambda: site.gateway.services.admission.depths)
        await site.gateway.publish(route("m", [site.engine.url], target_inflight=1), keys=(moved,))
        site.engine.release.set()
        await asyncio.gather(running, waiting)
        await until("it is unlocked", lambda: not locks._locks)
        await site.gateway.publish(route("m", [site.engine.url]), keys=(first,))
        assert len(await texts(site.client, conversation.id)) == 2


async def test_a_conversation_too_long_to_be_continued_is_refused() -> None:
    async with response_state.site(max_body_mib=1) as site:
        made = await site.client.conversations.create(items=[message("x" * 600_000)])
        pending = site.client.conversations.items.create(made.id, items=[message("x" * 600_000)])
        assert await refusal(pending) == (400, "invalid_request", "items")
        await site.make("x" * 500_000, conversation=made.id)
        assert await refusal(site.make("x", conversation=made.id)) == (400, "invalid_request", "conversation")
        [first] = [item async for item in site.client.conversations.items.list(made.id, order="asc", limit=1)][:1]
        await site.client.conversations.items.delete(str(first.id), conversation_id=made.id)
        await site.make("x", conversation=made.id)


async def test_a_turn_that_cannot_be_written_fails_and_leaves_neither_response_nor_items(site: Site) -> None:
    made = await site.client.conversations.create(items=[message("one")])
    database: Any = site.store._file._database
    await site.store.submit_job(lambda _: database._db.execute("PRAGMA max_page_count = 1").fetchall())
    pending = site.make("x" * 200_000, conversation=made.id)
    assert (await refusal(pending))[:2] == (500, "response_store_failed")
    assert (await site.store.submit_job(lambda database: database.count_stored())).responses == 0
    assert await texts(site.client, made.id) == ["one"]


async def new_conversation(site: Site, *texts: str) -> str:
    return (await site.client.conversations.create(items=[message(text) for text in texts])).id


async def test_over_websocket_responses_add_to_a_conversation_and_are_continued_without_it(site: Site) -> None:
    async with socket(site.gateway) as client:
        made = await new_conversation(site, "zero")
        first = await client.create("one", conversation=made, store=False)
        assert first["conversation"] == {"id": made}
        apart = await client.create("apart", previous_response_id=first["id"])
        assert [role for role, _ in site.messages()] == ["user", "user", "assistant", "user"]
        await client.create("two", conversation={"id": made})
        assert [text for role, text in site.messages() if role == "user"] == ["zero", "one", "two"]
        assert await texts(site.client, made) == ["zero", "one", TEXT, "two", TEXT]
        await site.client.conversations.delete(made)
        await site.make("three", previous_response_id=apart["id"])
        assert [text for role, text in site.messages() if role == "user"] == ["zero", "one", "apart", "three"]
        await nothing_left(site.gateway)


async def test_over_websocket_without_generation_the_input_is_added(site: Site) -> None:
    async with socket(site.gateway) as client:
        made = await new_conversation(site)
        assert (await client.create("one", conversation=made, generate=False))["output"] == []
        await client.send(input=[], conversation=await new_conversation(site), generate=False)
        assert (await client.turn())[-1]["type"] == "response.completed"
        assert not site.engine.requests
        await client.create("two", conversation=made)
        assert site.messages() == [("user", "one"), ("user", "two")]


async def test_over_websocket_a_conversation_is_locked_for_others(site: Site) -> None:
    async with socket(site.gateway) as client, socket(site.gateway) as other:
        made = await new_conversation(site)
        await client.send(input="one", conversation=made, fault="pause_until_release")
        await until("it runs", lambda: site.engine.running)
        await other.send(input="x", conversation=made)
        [told] = await other.turn()
        assert (told["error"]["code"], "retry-after" in told["headers"]) == ("conversation_locked", True)
        site.engine.release.set()
        await client.turn()
        assert (await other.create("two", conversation=made))["status"] == "completed"
        assert await texts(site.client, made) == ["one", TEXT, "two", TEXT]


async def test_a_conversation_is_compacted_and_stays_as_it_is(site: Site) -> None:
    made = await new_conversation(site, "zero")
    running = asyncio.create_task(site.make("one", conversation=made, fault="hold"))
    await until("it runs", lambda: site.engine.running)
    asked = {"model": "m", "input": "two", "conversation": made}
    told = json.loads((await site.gateway.post("/v1/responses/compact", **asked)).content)
    assert site.messages() == [("user", "zero"), ("user", f"two\n{SUMMARY_REQUEST}")]
    assert [each["type"] for each in told["output"]] == ["message", "message", "compaction"]
    site.engine.release.set()
    await running
    assert await texts(site.client, made) == ["zero", "one", TEXT]
    other = (await site.client.conversations.create(items=told["output"])).id
    await site.make("three", conversation=other)
    assert [role for role, _ in site.messages()] == ["user"] * 4


async def items_of(site: Site, conversation_id: str) -> list[dict[str, Any]]:
    items = site.client.conversations.items.list(conversation_id, order="asc", limit=100)
    return [item.to_dict() async for item in items]


async def test_a_killed_gateway_has_each_turn_wholly_or_not_at_all(tmp_path: Path) -> None:
    told: list[str] = []

    async def talk(site: Site, conversation_id: str) -> None:
        with contextlib.suppress(openai.APIConnectionError):
            while True:
                told.append((await site.make(str(len(told)), conversation=conversation_id)).id)

    async with engines(2) as (engine, other):
        async with process_site(tmp_path, engine) as (process, site):
            await site.gateway.publish(route("m", [engine.url]), route("held", [other.url]))
            conversation, locked = [await site.client.conversations.create(metadata={"a": "b"}) for _ in range(2)]
            queued = await site.make("one", model="held", conversation=locked.id, background=True, fault="hold")
            await until("it runs", lambda: other.running == 1)
            assert (await refusal(site.make("two", conversation=locked.id)))[1] == "conversation_locked"
            talking = asyncio.create_task(talk(site, conversation.id))
            await until("ten turns are told", lambda: len(told) >= 10)
            process.kill()
            await process.wait()
            await talking
        async with process_site(tmp_path, engine) as (_, site):
            items = await items_of(site, conversation.id)
            assert [item["role"] for item in items] == ["user", "assistant"] * (len(items) // 2)
            # All that the client was told the end of, and perhaps one turn more.
            assert len(told) <= len(items) // 2 <= len(told) + 1
            assert [item["content"][0]["text"] for item in items[::2]] == [str(n) for n in range(len(items) // 2)]
            for response_id, answer in zip(told, items[1::2], strict=False):
                assert (await site.client.responses.retrieve(response_id)).output[0].id == answer["id"]
            found = await site.client.conversations.retrieve(conversation.id)
            assert (found.created_at, found.metadata) == (conversation.created_at, {"a": "b"})
            shown = found.to_dict()
            assert (shown["item_count"], shown["active_item_id"]) == (len(items), items[-1]["id"])
            assert shown["running_response_id"] is None
            await site.make("on", conversation=conversation.id)
            assert len(site.messages()) == len(items) + 1
            # What was being made has failed, has added nothing, and locks nothing.
            assert (await site.client.responses.retrieve(queued.id)).status == "failed"
            assert await items_of(site, locked.id) == []
            await site.make("two", conversation=locked.id)
            assert [item["content"][0]["text"] for item in await items_of(site, locked.id)] == ["two", TEXT]
