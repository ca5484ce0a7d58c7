"""Responses that name the item of a conversation that they follow (`conversation.parent_id`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.gateway_harness import until
from tests.fakes.mock_engine import WORDS
from tests.support.conversation_rest import Rest, message, rest, text_of
from tests.support.response_sockets import socket
from tests.support.response_state import refusal, site

TEXT = " ".join(WORDS)
LOCKED = (400, "conversation_locked", "conversation")


def at(conversation_id: str, parent_id: str | None) -> Any:
    """The field `conversation` of a response that follows an item."""
    return {"id": conversation_id, "parent_id": parent_id}


async def begin(asking: Rest) -> str:
    """Id of a conversation with a question, its answer, and two messages after that on branches of their own: `a`, and
    `b`, which is active."""
    items = [
        message("one", id="q"),
        message("two", "assistant", id="x"),
        message("A", id="a"),
        message("B", id="b", parent_id="x"),
    ]
    made = await asking.post("", items=items)
    return str(made["id"])


async def links(asking: Rest, conversation_id: str) -> list[tuple[str, str | None]]:
    """Each item's text with the id of its parent, in the order in which they were added."""
    items = (await asking.get(f"/{conversation_id}/items?branch=all"))["data"]
    return [(text_of(item).strip(), item["parent_id"]) for item in items]


async def test_each_of_two_messages_gets_its_own_answer_at_the_same_time() -> None:
    async with site() as here:
        asking = rest(here)
        made = await begin(asking)
        before = await links(asking, made)
        first = asyncio.create_task(here.make([], conversation=at(made, "a"), fault="hold"))
        await until(lambda: here.engine.running == 1, "the first is made")
        second = asyncio.create_task(here.make([], conversation=at(made, "b"), fault="hold"))
        await until(lambda: here.engine.running == 2, "both are made")
        shared = [("user", "one"), ("assistant", "two")]
        assert [here.messages(0), here.messages(1)] == [[*shared, ("user", "A")], [*shared, ("user", "B")]]
        here.engine.release.set()
        to_a, to_b = await first, await second
        assert to_a.to_dict()["conversation"] == at(made, "a")
        items = (await asking.get(f"/{made}/items?branch=all"))["data"]
        assert {item["id"]: (item["parent_id"], text_of(item).strip()) for item in items[len(before) :]} == {
            to_a.output[0].id: ("a", TEXT),
            to_b.output[0].id: ("b", TEXT),
        }
        assert (await asking.get(f"/{made}"))["active_item_id"] == to_b.output[0].id, "only the active branch grew"


async def test_input_and_output_are_added_below_the_item_and_may_be_continued() -> None:
    async with site() as here:
        asking = rest(here)
        made = await begin(asking)
        before = await links(asking, made)
        response = await here.make("more", conversation=at(made, "x"))
        assert here.messages() == [("user", "one"), ("assistant", "two"), ("user", "more")]
        added = (await links(asking, made))[len(before) :]
        items = (await asking.get(f"/{made}/items?branch=all"))["data"]
        assert added == [("more", "x"), (TEXT, items[-2]["id"])]
        assert (await asking.get(f"/{made}"))["active_item_id"] == "b", "the active branch ended elsewhere"
        # A response that continues it sees the branch that it was made in.
        await here.make("yet more", previous_response_id=response.id)
        assert [text for _, text in here.messages()] == ["one", "two", "more", TEXT, "yet more"]
        root = await here.make("anew", conversation=at(made, None))
        assert here.messages() == [("user", "anew")]
        assert (root.to_dict()["conversation"], (await links(asking, made))[-2]) == (at(made, None), ("anew", None))
        counted = await here.client.responses.input_tokens.count(model="m", input="x", conversation=at(made, "q"))
        assert counted.input_tokens > 0
        assert here.messages() == [("user", "one"), ("user", "x")]


async def test_what_is_added_and_moved_while_such_a_response_is_made() -> None:
    async with site() as here:
        asking = rest(here)
        made = await begin(asking)
        running = asyncio.create_task(here.make([], conversation=at(made, "b"), fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        assert (await asking.get(f"/{made}"))["running_response_id"].startswith("resp_")
        path = f"/{made}/items"
        assert await asking.refused("POST", path, items=[message("x")]) == LOCKED, "it follows the active item"
        assert await asking.refused("POST", path, items=[message("x")], parent_id="b") == LOCKED
        assert await asking.refused("DELETE", f"{path}/x") == LOCKED
        for conversation in (made, at(made, "b")):
            assert await refusal(here.make("x", conversation=conversation)) == LOCKED
        await asking.post(path, items=[message("C", id="c")], parent_id="x")
        await asking.post(f"/{made}", active_item_id="a")
        here.engine.release.set()
        response = await running
        assert (await asking.get(f"/{made}"))["active_item_id"] == "a", "the user has moved meanwhile"
        assert (await links(asking, made))[-2:] == [("C", "x"), (TEXT, "b")]
        await asking.post(path, items=[message("x")], parent_id=response.output[0].id)


async def test_a_response_that_continues_the_active_branch_locks_all_of_it() -> None:
    async with site() as here:
        asking = rest(here)
        made = await begin(asking)
        running = asyncio.create_task(here.make([], conversation={"id": made}, fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        assert await refusal(here.make([], conversation=at(made, "a"))) == LOCKED
        assert await asking.refused("POST", f"/{made}/items", items=[message("x")], parent_id="a") == LOCKED
        assert await asking.refused("POST", f"/{made}", active_item_id="a") == LOCKED
        here.engine.release.set()
        assert (await running).to_dict()["conversation"] == {"id": made}


@pytest.mark.parametrize(
    ("parent_id", "told"),
    [
        ("none", (404, "conversation_item_not_found", "conversation.parent_id")),
        ("\x00", (404, "conversation_item_not_found", "conversation.parent_id")),
        (7, (400, "invalid_request", "conversation.parent_id")),
    ],
)
async def test_below_an_unknown_item_nothing_is_made_or_written(parent_id: Any, told: tuple[int, str, str]) -> None:
    async with site() as here:
        asking = rest(here)
        made = await begin(asking)
        before = await links(asking, made)
        for fields in ({}, {"stream": True}, {"background": True}):
            assert await refusal(here.make("x", conversation=at(made, parent_id), **fields)) == told
        assert here.engine.requests == []
        assert await links(asking, made) == before
        state = await asking.get(f"/{made}")
        assert (state["active_item_id"], state["running_response_id"]) == ("b", None)
        other = await asking.post("", items=[message("elsewhere", id="other")])
        assert await refusal(here.make("x", conversation=at(made, "other"))) == (
            404, "conversation_item_not_found", "conversation.parent_id",
        )  # fmt: skip
        assert (await asking.get(f"/{other['id']}"))["item_count"] == 1


async def test_in_the_background_and_over_websocket_it_means_the_same() -> None:
    async with site() as here, socket(here.gateway) as client:
        asking = rest(here)
        made = await begin(asking)
        late = await here.make([], conversation=at(made, "a"), background=True)
        assert late.to_dict()["conversation"] == at(made, "a")
        await here.over(late.id)
        assert (await links(asking, made))[-1] == (TEXT, "a")
        told = await client.create("deep", conversation=at(made, "q"))
        assert told["conversation"] == at(made, "q")
        assert (await links(asking, made))[-2] == ("deep", "q")
        assert (await asking.get(f"/{made}"))["active_item_id"] == "b"
