"""Conversations through the `openai` package: made, continued, read, changed, deleted, each for its own tenant."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.conversations import ConversationItem

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import WORDS
from tests.support.queueing import Clock, clock, key
from tests.support.response_state import Site, refusal, site

__all__ = ["clock"]

TEXT = " ".join(WORDS)
NOT_FOUND = (404, "conversation_not_found", "conversation_id")
NOT_CONTINUABLE = (404, "conversation_not_found", "conversation")
LOCKED = (400, "conversation_locked", "conversation")


def message(text: str, role: str = "user") -> Any:
    """An item."""
    return {"type": "message", "role": role, "content": text}


def text_of(item: ConversationItem) -> str:
    """What a message says."""
    content: Any = item.to_dict()["content"]
    return str(content[0]["text"])


async def texts(client: openai.AsyncOpenAI, conversation_id: str, **asked: Any) -> list[str]:
    """What the items of the active branch say, the oldest first."""
    listed = client.conversations.items.list(conversation_id, **{"order": "asc", **asked})
    return [text_of(item) async for item in listed]


async def test_a_conversation_is_made_read_changed_and_deleted() -> None:
    async with site() as here:
        conversations = here.client.conversations
        made = await conversations.create(
            metadata={"topic": "demo"}, items=[message("one"), message("two", "assistant")]
        )
        assert made.id.startswith("conv_")
        assert (made.object, made.metadata) == ("conversation", {"topic": "demo"})
        assert await conversations.retrieve(made.id) == made
        changed = await conversations.update(made.id, metadata={"topic": "other"})
        assert changed.metadata == {"topic": "other"}
        assert await conversations.retrieve(made.id) == changed
        assert await texts(here.client, made.id) == ["one", "two"]
        deleted = await conversations.delete(made.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
        for asking in (
            conversations.retrieve(made.id),
            conversations.update(made.id, metadata={}),
            conversations.delete(made.id),
            conversations.items.list(made.id),
            conversations.items.create(made.id, items=[message("x")]),
        ):
            assert await refusal(asking) == NOT_FOUND
        assert await refusal(here.make("x", conversation=made.id)) == NOT_CONTINUABLE
        empty = await conversations.create()
        assert (empty.metadata, await texts(here.client, empty.id)) == ({}, [])


async def test_responses_go_on_from_a_conversation_and_add_to_it() -> None:
    async with site() as here:
        made = await here.client.conversations.create(items=[message("Be brief.", "developer")])
        first = await here.make("one", conversation=made.id)
        assert first.conversation is not None
        assert first.conversation.id == made.id
        assert here.messages() == [("system", "Be brief."), ("user", "one")]
        second = await here.make("two", conversation={"id": made.id})
        assert here.messages()[1:] == [("user", "one"), ("assistant", TEXT), ("user", "two")]
        assert await texts(here.client, made.id) == ["Be brief.", "one", TEXT, "two", TEXT]
        listed = [item async for item in here.client.conversations.items.list(made.id, order="asc")]
        assert [item.id for item in listed][2::2] == [first.output[0].id, second.output[0].id]
        assert await here.client.responses.retrieve(second.id) == second
        # All that it was made of, as with `previous_response_id`.
        items = [item async for item in here.client.responses.input_items.list(second.id, order="asc")]
        assert [item.id for item in items] == [item.id for item in listed[:4]]


@pytest.mark.parametrize("how", ["stream", "background", "unstored"])
async def test_every_kind_of_response_adds_to_its_conversation(how: str) -> None:
    async with site() as here:
        made = await here.client.conversations.create()
        if how == "stream":
            stream = await here.client.responses.create(model="m", input="one", stream=True, conversation=made.id)
            assert [event.type async for event in stream][-1] == "response.completed"
        elif how == "background":
            queued = await here.make("one", conversation=made.id, background=True)
            await here.over(queued.id)
        else:
            response = await here.make("one", conversation=made.id, store=False)
            assert (await refusal(here.client.responses.retrieve(response.id)))[1] == "response_not_found"
        words = [text.strip() for text in await texts(here.client, made.id)]
        assert words == ["one", TEXT]
        again = await here.make([], conversation=made.id)
        assert again.output_text == TEXT
        assert [role for role, _ in here.messages()] == ["user", "assistant"]


async def test_what_the_last_event_told_may_be_counted_on() -> None:
    """The engine's connection may end later than its stream: the conversation is free, and has the answer."""
    async with site() as here:
        made = await here.client.conversations.create()
        stream = await here.client.responses.create(
            model="m", input="one", stream=True, conversation=made.id, extra_body={"fault": "late_end"}
        )
        async for event in stream:
            if event.type == "response.completed":
                break
        assert here.engine.running == 1
        await here.make("two", conversation=made.id)
        assert here.messages()[0] == ("user", "one")
        assert len(here.messages()) == 3
        here.engine.release.set()
        await until(lambda: here.engine.running == 0, "the connection ends")
        assert len(await texts(here.client, made.id)) == 4


async def test_one_response_at_a_time_adds_to_a_conversation() -> None:
    async with site() as here:
        made = await here.client.conversations.create(items=[message("zero")])
        other = await here.client.conversations.create()
        [zero] = [item async for item in here.client.conversations.items.list(made.id)]
        assert zero.id is not None
        first = asyncio.create_task(here.make("one", conversation=made.id, fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        items = here.client.conversations.items
        for asking in (
            here.make("two", conversation=made.id),
            here.make("two", conversation=made.id, background=True),
            items.create(made.id, items=[message("x")]),
            items.delete(zero.id, conversation_id=made.id),
        ):
            assert await refusal(asking) == LOCKED
        async with here.gateway.post("/v1/responses", model="m", input="x", conversation=made.id) as answer:
            assert answer.headers["retry-after"]
        # Reading it, counting with it, naming it and another one are free.
        assert await texts(here.client, made.id) == ["zero"]
        counted = await here.client.responses.input_tokens.count(model="m", input="x", conversation=made.id)
        assert counted.input_tokens
        await here.client.conversations.update(made.id, metadata={"a": "b"})
        await here.make("two", conversation=other.id)
        here.engine.release.set()
        await first
        await here.make("three", conversation=made.id)
        assert await texts(here.client, made.id) == ["zero", "one", TEXT, "three", TEXT]


async def test_a_response_that_fails_or_is_left_adds_nothing_and_frees_the_conversation() -> None:
    async with site() as here:
        made = await here.client.conversations.create()
        await refusal(here.make("one", conversation=made.id, fault="error_json"))
        await refusal(here.make("one", conversation=made.id, top_p="x"))
        leaving = asyncio.create_task(here.make("one", conversation=made.id, fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        leaving.cancel()
        await until(lambda: here.engine.running == 0, "it is over")
        queued = await here.make("one", conversation=made.id, background=True, fault="hold")
        await here.client.responses.cancel(queued.id)
        assert await texts(here.client, made.id) == []
        await here.make("two", conversation=made.id)
        assert await texts(here.client, made.id) == ["two", TEXT]


async def test_a_conversation_deleted_under_a_response_stays_deleted() -> None:
    async with site() as here:
        made = await here.client.conversations.create()
        running = asyncio.create_task(here.make("one", conversation=made.id, fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        await here.client.conversations.delete(made.id)
        here.engine.release.set()
        response = await running
        assert await here.client.responses.retrieve(response.id) == response
        assert await refusal(here.client.conversations.retrieve(made.id)) == NOT_FOUND


async def test_a_response_of_a_conversation_may_be_continued_by_itself() -> None:
    async with site() as here:
        made = await here.client.conversations.create(items=[message("zero")])
        first = await here.make("one", conversation=made.id)
        await here.make("two", conversation=made.id)
        branch = await here.make("other", previous_response_id=first.id)
        before = [("user", "zero"), ("user", "one"), ("assistant", TEXT), ("user", "other")]
        assert here.messages() == before
        assert "other" not in await texts(here.client, made.id)
        [zero] = [item async for item in here.client.conversations.items.list(made.id, order="asc", limit=1)][:1]
        await here.client.conversations.items.delete(str(zero.id), conversation_id=made.id)
        await here.make("more", previous_response_id=branch.id)
        assert here.messages() == [*before[1:], ("assistant", TEXT), ("user", "more")]
        await here.client.conversations.delete(made.id)
        asking = here.make("x", previous_response_id=branch.id)
        assert await refusal(asking) == (400, "previous_response_not_found", "previous_response_id")
        made_of = [item async for item in here.client.responses.input_items.list(branch.id)]
        assert len(made_of) == 3, "what is left of it"


async def test_items_are_listed_by_pages_read_and_deleted() -> None:
    async with site() as here:
        items = here.client.conversations.items
        made = await here.client.conversations.create()
        added = await items.create(made.id, items=[message(str(number)) for number in range(5)])
        assert [text_of(item) for item in added.data] == ["0", "1", "2", "3", "4"]
        assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[-1].id, False)
        assert await texts(here.client, made.id, limit=2) == ["0", "1", "2", "3", "4"], "page by page"
        page = await items.list(made.id, limit=2)
        assert ([text_of(item) for item in page.data], page.has_more) == (["4", "3"], True)
        second, third = (str(item.id) for item in added.data[1:3])
        after = await items.list(made.id, after=third, order="asc")
        assert [text_of(item) for item in after.data] == ["3", "4"]
        assert text_of(await items.retrieve(second, conversation_id=made.id)) == "1"
        assert (await items.delete(second, conversation_id=made.id)).id == made.id
        assert await texts(here.client, made.id) == ["0", "2", "3", "4"]
        no_item = (404, "conversation_item_not_found", "item_id")
        assert await refusal(items.retrieve(second, conversation_id=made.id)) == no_item
        assert await refusal(items.delete(second, conversation_id=made.id)) == no_item
        assert await refusal(items.list(made.id, after=second)) == (400, "invalid_request", "after")
        assert await refusal(items.list(made.id, limit=101)) == (400, "invalid_request", "limit")


async def test_items_make_a_tree_whose_active_branch_is_shown() -> None:
    async with site() as here:
        items = here.client.conversations.items
        made = await here.client.conversations.create(items=[message("one")])
        answer = await here.make("two", conversation=made.id)
        listed = [item.to_dict() async for item in items.list(made.id, order="asc")]
        ids = [item["id"] for item in listed]
        assert [item["parent_id"] for item in listed] == [None, *ids[:-1]]
        other = await items.create(made.id, items=[message("instead")], extra_body={"parent_id": ids[0]})
        assert other.data[0].to_dict()["parent_id"] == ids[0]
        assert await texts(here.client, made.id) == ["one", "instead"]
        await here.make([], conversation=made.id)
        assert here.messages() == [("user", "one"), ("user", "instead")]
        assert text_of(await items.retrieve(str(answer.output[0].id), conversation_id=made.id)) == TEXT
        await items.create(made.id, items=[message("anew")], extra_body={"parent_id": None})
        assert await texts(here.client, made.id) == ["anew"]
        asking = items.create(made.id, items=[message("x")], extra_body={"parent_id": "msg_none"})
        assert await refusal(asking) == (404, "conversation_item_not_found", "parent_id")
        # Deleted in the middle, what came after it comes after its parent, on each branch.
        await items.create(made.id, items=[message("back")], extra_body={"parent_id": ids[2]})
        await items.delete(str(ids[1]), conversation_id=made.id)
        assert await texts(here.client, made.id) == ["one", TEXT, "back"]


async def test_calls_of_tools_and_their_results_pass_through_a_conversation() -> None:
    async with site() as here:
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        made = await here.client.conversations.create(items=[message("find"), call])  # type: ignore[list-item]
        result: Any = {"type": "function_call_output", "call_id": "c1", "output": "found"}
        added = await here.client.conversations.items.create(made.id, items=[result])
        assert [item.type for item in added.data] == ["function_call_output"]
        await here.make("and?", conversation=made.id)
        sent = here.engine.requests[-1].body["messages"]
        assert [each["role"] for each in sent] == ["user", "assistant", "tool", "user"]
        # A result whose call is nowhere may be added, and cannot be answered.
        orphan: Any = {"type": "function_call_output", "call_id": "c2", "output": "x"}
        lonely = await here.client.conversations.create(items=[orphan])
        assert await refusal(here.make("x", conversation=lonely.id)) == (400, "invalid_request", "conversation.call_id")


async def test_items_are_referred_to_and_copied_by_their_ids() -> None:
    async with site() as here:
        made = await here.client.conversations.create(items=[message("one")])
        [one] = [item async for item in here.client.conversations.items.list(made.id)]
        reference: Any = {"type": "item_reference", "id": one.id}
        await here.client.responses.create(model="m", input=[reference, message("two")])
        assert here.messages() == [("user", "one"), ("user", "two")]
        copied = await here.client.conversations.create(items=[reference])
        assert await texts(here.client, copied.id) == ["one"]
        again: Any = one.to_dict()
        asking = here.client.conversations.items.create(made.id, items=[again])
        assert await refusal(asking) == (400, "invalid_request", "items[0].id")
        # In a response's input it is another item, with an id of its own.
        await here.client.responses.create(model="m", input=[again], conversation=made.id)
        assert await texts(here.client, made.id) == ["one", "one", TEXT]


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
async def test_what_no_conversation_may_hold_is_refused_at_its_place(fields: dict[str, Any], place: str) -> None:
    async with site() as here, here.gateway.post("/v1/conversations", **fields) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "invalid_request", place)


async def test_a_request_names_one_past_only() -> None:
    async with site() as here:
        made = await here.client.conversations.create()
        first = await here.make("one")
        wrong = (400, "invalid_request", "conversation")
        assert await refusal(here.make("x", conversation=made.id, previous_response_id=first.id)) == wrong
        assert await refusal(here.make("x", conversation=7)) == wrong
        assert await refusal(here.make("x", conversation={})) == (400, "invalid_request", "conversation.id")
        assert await refusal(here.make([], conversation=made.id)) == (400, "invalid_request", "input")
        assert await refusal(here.make("x", conversation="conv_none")) == NOT_CONTINUABLE
        assert await refusal(here.make("x", conversation="conv\x00")) == NOT_CONTINUABLE
        assert (await here.gateway.request("POST", "/v1/conversations", data=b"[1")).refusal == (400, "invalid_json")


async def test_of_another_tenant_nothing_is_told_apart_from_nothing() -> None:
    keys = (key("mine", tenant="t"), key("theirs", tenant="u"), key("ours", tenant="t"))
    async with site(keys=keys) as here:
        made = await here.client.conversations.create(items=[message("one")])
        [item] = [item async for item in here.client.conversations.items.list(made.id)]
        assert (await here.as_key("ours").conversations.retrieve(made.id)).id == made.id
        theirs = here.as_key("theirs")
        for conversation_id in (made.id, "conv_none"):
            for asking in (
                theirs.conversations.retrieve(conversation_id),
                theirs.conversations.update(conversation_id, metadata={}),
                theirs.conversations.delete(conversation_id),
                theirs.conversations.items.list(conversation_id),
                theirs.conversations.items.create(conversation_id, items=[message("x")]),
                theirs.conversations.items.retrieve(str(item.id), conversation_id=conversation_id),
                theirs.conversations.items.delete(str(item.id), conversation_id=conversation_id),
            ):
                assert await refusal(asking) == NOT_FOUND
            continuing = theirs.responses.create(model="m", input="x", conversation=conversation_id)
            assert await refusal(continuing) == NOT_CONTINUABLE
        reference: Any = {"type": "item_reference", "id": item.id}
        assert (await refusal(theirs.conversations.create(items=[reference])))[2] == "items[0].id"
        # Nor does a lock of one tenant hold another's, who may name any id.
        holding = asyncio.create_task(here.make("one", conversation=made.id, fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        assert await refusal(theirs.responses.create(model="m", input="x", conversation=made.id)) == NOT_CONTINUABLE
        here.engine.release.set()
        await holding


async def test_a_key_for_some_models_sees_where_these_answered_last() -> None:
    keys = (key("all", tenant="t"), key("some", tenant="t", models=("n",)))
    async with engines(1) as (other,), site(route("n", [other.url]), keys=keys) as here:
        made = await here.client.conversations.create()
        some = here.as_key("some")
        await some.responses.create(model="n", input="one", conversation=made.id)
        await here.make("two", conversation=made.id)
        assert await refusal(some.conversations.retrieve(made.id)) == NOT_FOUND
        asking = some.responses.create(model="n", input="three", conversation=made.id)
        assert await refusal(asking) == NOT_CONTINUABLE
        await here.client.responses.create(model="n", input="three", conversation=made.id)
        assert len(await texts(some, made.id)) == 6


async def test_a_conversation_is_kept_for_its_time(clock: Clock) -> None:
    async with site(responses_retention_h=2) as here:
        made, lonely = [await here.client.conversations.create(items=[message("one")]) for _ in range(2)]
        clock.now += 1.5 * 3600
        await here.make("two", conversation=made.id)
        await texts(here.client, lonely.id)
        clock.now += 1.5 * 3600
        assert await refusal(here.client.conversations.retrieve(lonely.id)) == NOT_FOUND
        assert await texts(here.client, made.id) == ["one", "two", TEXT]
        await here.client.conversations.update(made.id, metadata={"a": "b"})
        clock.now += 1.5 * 3600
        assert len(await texts(here.client, made.id)) == 3
        await here.store.submit_job(lambda database: database.sweep_expired())
        counted = await here.store.submit_job(lambda database: database.count_stored())
        assert counted.conversations == 1


async def test_where_nothing_is_stored_there_are_no_conversations() -> None:
    async with site(responses_retention_h=0) as here:
        assert await refusal(here.client.conversations.create()) == (403, "storage_disabled", None)
        assert await refusal(here.client.conversations.retrieve("conv_x")) == NOT_FOUND
        assert await refusal(here.make("x", conversation="conv_x")) == NOT_CONTINUABLE
        assert await refusal(here.client.conversations.items.list("conv_x")) == NOT_FOUND


async def test_a_conversation_too_long_to_be_continued_is_refused() -> None:
    async with site(max_body_mib=1) as here:
        made = await here.client.conversations.create(items=[message("x" * 600_000)])
        asking = here.client.conversations.items.create(made.id, items=[message("x" * 600_000)])
        assert await refusal(asking) == (400, "invalid_request", "items")
        await here.make("x" * 500_000, conversation=made.id)
        assert await refusal(here.make("x", conversation=made.id)) == (400, "invalid_request", "conversation")
        [first] = [item async for item in here.client.conversations.items.list(made.id, order="asc", limit=1)][:1]
        await here.client.conversations.items.delete(str(first.id), conversation_id=made.id)
        await here.make("x", conversation=made.id)


async def test_a_turn_that_cannot_be_written_fails_and_leaves_neither_response_nor_items() -> None:
    async with site() as here:
        made = await here.client.conversations.create(items=[message("one")])
        await _fill_disk(here)
        asking = here.make("x" * 200_000, conversation=made.id)
        assert (await refusal(asking))[:2] == (500, "response_store_failed")
        counted = await here.store.submit_job(lambda database: database.count_stored())
        assert counted.responses == 0
        assert await texts(here.client, made.id) == ["one"]


async def _fill_disk(here: Site) -> None:
    database: Any = here.store._file._database
    await here.store.submit_job(lambda _: database._db.execute("PRAGMA max_page_count = 1").fetchall())
