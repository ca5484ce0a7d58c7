"""The tree of a conversation as a web page uses it: all branches, moves between them, answers made anew or cut off,
imports; and the list of a tenant's conversations, with the search in titles and texts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import openai
import pytest

from assistant.storage import conversation_table
from contract.admin import Capabilities
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines
from tests.fakes.mock_engine import WORDS
from tests.integration.assistant.test_responses_process import process_site
from tests.support import response_state
from tests.support.installed_engines import needed
from tests.support.queueing import Clock, clock, key
from tests.support.response_state import Rest, Site, message, refusal, rest, socket, text_of
from tests.support.responses_gateway import engines as real_engines
from tests.support.responses_gateway import responses_gateway
from tests.support.resumed_streams import open_stream, read_again, stop
from tests.support.wait import until
from tests.support.worker_process import Worker
from worker.clockwork import SENTENCE

__all__ = ["clock"]


TEXT = " ".join(WORDS)


def tree(items: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """What each item says, and what its parent says; None: it has none."""
    texts = {item["id"]: text_of(item).strip() for item in items}
    return [(texts[item["id"]], texts.get(item["parent_id"])) for item in items]


async def branch(rest: Rest, conversation_id: str) -> list[str]:
    listed = await rest.get(f"/{conversation_id}/items?order=asc&limit=100")
    return [text_of(item).strip() for item in listed["data"]]


async def test_all_branches_are_listed_in_the_order_in_which_they_were_added(rest: Rest) -> None:
    made = await rest.post("", items=[message("one"), message("two", "assistant")])
    [_, two] = (await rest.get(f"/{made['id']}/items?branch=all"))["data"]
    await rest.post(f"/{made['id']}/items", items=[message("three")])
    await rest.post(f"/{made['id']}/items", items=[message("three again"), message("four")], parent_id=two["id"])
    page = await rest.get(f"/{made['id']}/items?branch=all&limit=1000")
    expected = [("one", None), ("two", "one"), ("three", "two"), ("three again", "two"), ("four", "three again")]
    assert tree(page["data"]) == expected
    assert page["has_more"] is False
    first = await rest.get(f"/{made['id']}/items?branch=all&limit=2")
    rest_of = await rest.get(f"/{made['id']}/items?branch=all&after={first['last_id']}")
    assert (first["has_more"], first["data"] + rest_of["data"]) == (True, page["data"])
    newest = await rest.get(f"/{made['id']}/items?branch=all&order=desc&limit=1")
    assert newest["data"] == page["data"][-1:]
    assert await branch(rest, made["id"]) == ["one", "two", "three again", "four"]
    for query, place in (("branch=some", "branch"), ("branch=all&limit=1001", "limit"), ("limit=101", "limit")):
        assert await rest.refused("GET", f"/{made['id']}/items?{query}") == (400, "invalid_request", place)


async def test_an_answer_is_made_anew_and_both_stay(site: Site, rest: Rest) -> None:
    made = await rest.post("", items=[])
    assert made["active_item_id"] is None
    first = await site.make("one", conversation=made["id"])
    [question, answer] = (await rest.get(f"/{made['id']}/items?branch=all"))["data"]
    assert (await rest.get(f"/{made['id']}"))["active_item_id"] == answer["id"] == first.output[0].id
    moved = await rest.post(f"/{made['id']}", active_item_id=question["id"])
    assert moved["active_item_id"] == question["id"]
    assert await branch(rest, made["id"]) == ["one"], "exactly that item, not what follows it"
    second = await site.make([], conversation=made["id"])
    assert site.messages() == [("user", "one")]
    items = (await rest.get(f"/{made['id']}/items?branch=all"))["data"]
    assert [(item["id"], item["parent_id"]) for item in items] == [
        (question["id"], None),
        (answer["id"], question["id"]),
        (second.output[0].id, question["id"]),
    ]
    assert (await rest.get(f"/{made['id']}"))["active_item_id"] == second.output[0].id
    # Back to the first answer, which is continued then.
    await rest.post(f"/{made['id']}", active_item_id=answer["id"])
    await site.make("two", conversation=made["id"])
    assert site.messages() == [("user", "one"), ("assistant", TEXT), ("user", "two")]
    # To before the beginning: the next message is another first one.
    assert (await rest.post(f"/{made['id']}", active_item_id=None))["active_item_id"] is None
    await site.make("anew", conversation=made["id"])
    assert site.messages() == [("user", "anew")]
    assert await branch(rest, made["id"]) == ["anew", TEXT]


async def test_the_active_branch_does_not_move_under_a_response(site: Site, rest: Rest) -> None:
    made = await rest.post("", items=[message("one"), message("two", "assistant")])
    [one, two] = (await rest.get(f"/{made['id']}/items?branch=all"))["data"]
    running = asyncio.create_task(site.make("three", conversation=made["id"], fault="hold"))
    await until("it runs", lambda: site.engine.running == 1)
    assert (await rest.get(f"/{made['id']}"))["running_response_id"].startswith("resp_")
    [listed] = (await rest.get(""))["data"]
    assert listed["running_response_id"] == (await rest.get(f"/{made['id']}"))["running_response_id"]
    locked = (400, "conversation_locked", "conversation")
    assert await rest.refused("POST", f"/{made['id']}", active_item_id=one["id"]) == locked
    changed = await rest.post(f"/{made['id']}", settings={"a": 1}, metadata={"title": "x"})
    assert changed["active_item_id"] == two["id"]
    site.engine.release.set()
    response = await running
    moved = await rest.post(f"/{made['id']}", active_item_id=one["id"])
    assert (moved["running_response_id"], moved["active_item_id"]) == (None, one["id"])
    assert (await rest.get(f"/{made['id']}/items?branch=all"))["data"][-1]["id"] == response.output[0].id


async def test_a_deleted_item_is_not_active_any_more(rest: Rest) -> None:
    made = await rest.post("", items=[message("one"), message("two")])
    [one, two] = (await rest.get(f"/{made['id']}/items?branch=all"))["data"]
    deleted = await rest.delete(f"/{made['id']}/items/{two['id']}")
    assert (deleted["active_item_id"], deleted["item_count"]) == (one["id"], 1)
    for wrong in (two["id"], "msg_none", "\x00"):
        told = await rest.refused("POST", f"/{made['id']}", active_item_id=wrong)
        assert told == (404, "conversation_item_not_found", "active_item_id")
    assert await rest.refused("POST", f"/{made['id']}", active_item_id=7) == (400, "invalid_request", "active_item_id")
    assert (await rest.get(f"/{made['id']}"))["active_item_id"] == one["id"]


async def test_a_change_names_what_it_changes(rest: Rest) -> None:
    settings = {"system": "Be brief.", "temperature": 0.5, "tools": ["a", None], "deep": {"é": [1]}}
    made = await rest.post("", metadata={"title": "x"}, settings=settings, items=[message("one")])
    assert made["settings"] == settings
    assert (await rest.get(f"/{made['id']}")) == made
    moved = await rest.post(f"/{made['id']}", active_item_id=None)
    assert (moved["metadata"], moved["settings"]) == ({"title": "x"}, settings)
    titled = await rest.post(f"/{made['id']}", metadata={"title": "y"})
    assert (titled["metadata"], titled["settings"]) == ({"title": "y"}, settings)
    other = await rest.post(f"/{made['id']}", settings={})
    assert (other["metadata"], other["settings"]) == ({"title": "y"}, {})
    removed = await rest.post(f"/{made['id']}", settings=None)
    assert (removed["metadata"], removed["settings"]) == ({"title": "y"}, None)
    bare = await rest.post(f"/{made['id']}")
    assert bare["metadata"] == {}, "as at OpenAI, where `metadata` is all that there is"
    most = {"a": "x" * (65_536 - len('{"a":""}'))}
    assert (await rest.post(f"/{made['id']}", settings=most))["settings"] == most
    wrongs: list[Any] = [{"a": most["a"] + "x"}, [], "x"]
    for wrong in wrongs:
        for path in ("", f"/{made['id']}"):
            assert await rest.refused("POST", path, settings=wrong) == (400, "invalid_request", "settings")
    assert (await rest.get(f"/{made['id']}"))["settings"] == most


async def test_a_tree_is_imported_in_one_request(rest: Rest) -> None:
    items = [
        message("hello", id="q"),
        message("first answer", "assistant", id="a1"),
        message("second answer", "assistant", id="a2", parent_id="q"),
        message("and then?", id="q2"),
        message("another beginning", id="r", parent_id=None),
        message("back", id="q3", parent_id="a1"),
    ]
    expected = [
        ("hello", None),
        ("first answer", "hello"),
        ("second answer", "hello"),
        ("and then?", "second answer"),
        ("another beginning", None),
        ("back", "first answer"),
    ]
    made = await rest.post("", items=items)
    listed = (await rest.get(f"/{made['id']}/items?branch=all"))["data"]
    assert tree(listed) == expected
    assert [item["id"] for item in listed] == ["q", "a1", "a2", "q2", "r", "q3"]
    assert await branch(rest, made["id"]) == ["hello", "first answer", "back"], "the last one is active"
    # In a second request, below items of the first one.
    other = await rest.post("", items=items[:2])
    added = await rest.post(f"/{other['id']}/items", items=items[2:])
    assert tree(listed)[3:] == tree([*listed[:2], *added["data"]])[3:]
    assert tree((await rest.get(f"/{other['id']}/items?branch=all"))["data"]) == expected
    # The conversation that was read is imported as it was told.
    copy = await rest.post("", items=listed)
    assert (await rest.get(f"/{copy['id']}/items?branch=all"))["data"] == listed


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([message("x", parent_id="none")], (404, "conversation_item_not_found", "items[0].parent_id")),
        ([message("x"), message("y", parent_id="z"), message("z", id="z")],
         (404, "conversation_item_not_found", "items[1].parent_id")),
        ([message("x", id="x", parent_id="x")], (404, "conversation_item_not_found", "items[0].parent_id")),
        ([message("x", parent_id="\x00")], (404, "conversation_item_not_found", "items[0].parent_id")),
        ([message("x", parent_id=7)], (400, "invalid_request", "items[0].parent_id")),
        ([message("y"), message("x", id="first")], (400, "invalid_request", "items[1].id")),
    ],
)  # fmt: skip
async def test_of_a_wrong_import_nothing_is_added(items: list[Any], told: tuple[int, str, str], rest: Rest) -> None:
    made = await rest.post("", items=[message("one", id="first")])
    assert await rest.refused("POST", f"/{made['id']}/items", items=items) == told
    below_none = await rest.refused("POST", f"/{made['id']}/items", items=[message("x")], parent_id="none")
    assert below_none == (404, "conversation_item_not_found", "parent_id")
    if told[2] != "items[1].id":
        assert await rest.refused("POST", "", items=items) == told
    assert [each["id"] for each in (await rest.get(""))["data"]] == [made["id"]]
    assert await branch(rest, made["id"]) == ["one"]
    assert (await rest.get(f"/{made['id']}"))["active_item_id"] == "first"


async def test_no_branch_of_an_import_is_longer_than_what_may_be_continued() -> None:
    async with response_state.site(max_body_mib=1) as site:
        rest = Rest(site)
        made = await rest.post("", items=[message("x" * 600_000, id="a")])
        fitting = [message(text * 300_000, id=text, parent_id="a") for text in "bc"]
        added = await rest.post(f"/{made['id']}/items", items=fitting)
        assert [item["parent_id"] for item in added["data"]] == ["a", "a"], "each branch for itself"
        for parent in "bc":
            items = [message("v", parent_id=None), message("w" * 300_000, parent_id=parent)]
            told = await rest.refused("POST", f"/{made['id']}/items", items=items)
            assert told == (400, "invalid_request", "items")
        assert (await rest.get(f"/{made['id']}"))["item_count"] == 3


async def test_a_thousand_items_are_imported_at_once_and_read_at_once(rest: Rest) -> None:
    items = [message(f"number {number}", ("user", "assistant")[number % 2], id=f"i{number}") for number in range(1000)]
    for number in range(2, 1000, 3):
        items[number]["parent_id"] = f"i{number // 2}"
    made = await rest.post("", items=items)
    assert (made["item_count"], made["active_item_id"]) == (1000, "i999")
    page = await rest.get(f"/{made['id']}/items?branch=all&limit=1000")
    assert [item["id"] for item in page["data"]] == [item["id"] for item in items]
    assert [item["parent_id"] for item in page["data"]] == [
        item.get("parent_id", f"i{number - 1}" if number else None) for number, item in enumerate(items)
    ]
    more = [message("x", id=f"j{number}", parent_id=f"i{number}") for number in range(1000)]
    await rest.post(f"/{made['id']}/items", items=more)
    assert (await rest.get(f"/{made['id']}"))["item_count"] == 2000
    assert await rest.refused("POST", f"/{made['id']}/items", items=[*more, message("x")]) == (
        400,
        "invalid_request",
        "items",
    )


async def test_an_item_is_added_to_the_place_that_its_request_says_and_not_where_it_was(rest: Rest) -> None:
    made = await rest.post("", items=[message("one", id="a"), message("two", id="b")])
    copied = await rest.post("", items=[{"type": "item_reference", "id": "b"}])
    listed = (await rest.get(f"/{copied['id']}/items"))["data"]
    assert [(item["id"], item["parent_id"]) for item in listed] == [("b", None)]
    placed = [message("0", id="z"), {"id": "a", "parent_id": None}]
    again = await rest.post("", items=placed)
    listed = (await rest.get(f"/{again['id']}/items?branch=all"))["data"]
    assert [(item["id"], item["parent_id"]) for item in listed] == [("z", None), ("a", None)]
    assert made["item_count"] == 2


def image(size: int) -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{'A' * size}", "detail": "low"}


async def test_a_conversation_with_fifty_images_is_read_without_them() -> None:
    async with response_state.site(
        max_body_mib=32, m={"capabilities": Capabilities(modalities=("text", "image"))}
    ) as site:
        rest = Rest(site)
        parts = [{"type": "input_text", "text": "Look"}, image(400_000)]
        items = [message(f"{number}", id=f"i{number}") | {"content": parts} for number in range(50)]
        made = await rest.post("", items=[*items, message("nothing", id="last")])
        path = f"/{made['id']}/items?branch=all&limit=1000"
        page = await rest.get(f"{path}&content=references")
        omitted = {"type": "input_image", "detail": "low", "omitted": {"media_type": "image/png", "bytes": 400_000}}
        assert [item["content"] for item in page["data"][:-1]] == [[parts[0], omitted]] * 50
        assert page["data"][-1]["content"] == [{"type": "input_text", "text": "nothing"}]
        assert len(str(page)) < 50_000
        active = await rest.get(f"/{made['id']}/items?content=references&limit=2")
        assert active["data"] == page["data"][:-3:-1]
        # Whole, one by one and all together.
        whole = await rest.get(f"/{made['id']}/items/i7")
        assert whole["content"] == parts
        assert (await rest.get(f"/{made['id']}/items?order=asc&limit=8"))["data"][7] == whole
        assert len((await rest.get(path))["data"]) == 51
        assert await rest.refused("GET", f"{path}&content=x") == (400, "invalid_request", "content")
        # A response is made from the whole items.
        await site.make([], conversation=made["id"])
        sent = site.engine.requests[-1].body["messages"]
        assert sent[0]["content"][1]["image_url"]["url"] == parts[1]["image_url"]


async def test_an_outline_is_no_item_that_can_be_sent_back(rest: Rest) -> None:
    made = await rest.post("", items=[message("x") | {"content": [image(100)]}])
    [shown] = (await rest.get(f"/{made['id']}/items?content=references"))["data"]
    told = await rest.refused("POST", "", items=[shown])
    assert told == (400, "invalid_request", "items[0].content[0].image_url")


async def test_items_of_an_answer_name_their_response_and_have_its_figures(site: Site, rest: Rest) -> None:
    made = await rest.post("", items=[])
    async with site.client.responses.stream(model="m", input="one", conversation=made["id"]) as stream:
        streamed = await stream.get_final_response()
    whole = await site.make("two", conversation=made["id"], store=False)
    items = (await rest.get(f"/{made['id']}/items?branch=all&content=references"))["data"]
    assert [("answer" in item, text_of(item).strip()) for item in items] == [
        (False, "one"),
        (True, TEXT),
        (False, "two"),
        (True, TEXT),
    ]
    for item, response in ((items[1], streamed), (items[3], whole)):
        answer = item["answer"]
        figures = answer["figures"]
        assert answer["response_id"] == response.id
        assert (figures["model"], figures["usage"]) == ("m", response.to_dict()["usage"])
        # Both are there for a stream; that one is not before the other holds on any machine.
        is_stream = response is streamed
        assert (answer["took_ms"] is not None, figures["first_token_ms"] is not None) == (is_stream, is_stream)
        assert figures["total_ms"] >= (figures["first_token_ms"] or 0)
    assert (await rest.get(f"/{made['id']}/items/{items[1]['id']}"))["answer"] == items[1]["answer"]
    # A copy is no answer, and the engine is told nothing of it.
    copied = await rest.post("", items=[*items, message("three")])
    assert all("answer" not in item for item in (await rest.get(f"/{copied['id']}/items"))["data"])
    await site.make([], conversation=copied["id"])
    assert "took_ms" not in str(site.engine.requests[-1].body)


LOCKED = (400, "conversation_locked", "conversation")


def at(conversation_id: str, parent_id: str | None) -> Any:
    """The field `conversation` of a response that follows an item."""
    return {"id": conversation_id, "parent_id": parent_id}


async def begin(rest: Rest) -> str:
    """Id of a conversation with a question, its answer, and two messages after that on branches of their own: `a`, and
    `b`, which is active."""
    items = [
        message("one", id="q"),
        message("two", "assistant", id="x"),
        message("A", id="a"),
        message("B", id="b", parent_id="x"),
    ]
    made = await rest.post("", items=items)
    return str(made["id"])


async def links(rest: Rest, conversation_id: str) -> list[tuple[str, str | None]]:
    """Each item's text with the id of its parent, in the order in which they were added."""
    items = (await rest.get(f"/{conversation_id}/items?branch=all"))["data"]
    return [(text_of(item).strip(), item["parent_id"]) for item in items]


async def test_each_of_two_messages_gets_its_own_answer_at_the_same_time(site: Site, rest: Rest) -> None:
    made = await begin(rest)
    before = await links(rest, made)
    first = asyncio.create_task(site.make([], conversation=at(made, "a"), fault="hold"))
    await until("the first is made", lambda: site.engine.running == 1)
    second = asyncio.create_task(site.make([], conversation=at(made, "b"), fault="hold"))
    await until("both are made", lambda: site.engine.running == 2)
    shared = [("user", "one"), ("assistant", "two")]
    assert [site.messages(0), site.messages(1)] == [[*shared, ("user", "A")], [*shared, ("user", "B")]]
    site.engine.release.set()
    to_a, to_b = await first, await second
    assert to_a.to_dict()["conversation"] == at(made, "a")
    items = (await rest.get(f"/{made}/items?branch=all"))["data"]
    assert {item["id"]: (item["parent_id"], text_of(item).strip()) for item in items[len(before) :]} == {
        to_a.output[0].id: ("a", TEXT),
        to_b.output[0].id: ("b", TEXT),
    }
    assert (await rest.get(f"/{made}"))["active_item_id"] == to_b.output[0].id, "only the active branch grew"


async def test_input_and_output_are_added_below_the_item_and_may_be_continued(site: Site, rest: Rest) -> None:
    made = await begin(rest)
    before = await links(rest, made)
    response = await site.make("more", conversation=at(made, "x"))
    assert site.messages() == [("user", "one"), ("assistant", "two"), ("user", "more")]
    added = (await links(rest, made))[len(before) :]
    assert added == [("more", "x"), (TEXT, (await rest.get(f"/{made}/items?branch=all"))["data"][-2]["id"])]
    assert (await rest.get(f"/{made}"))["active_item_id"] == "b", "the active branch ended elsewhere"
    # A response that continues it sees the branch that it was made in.
    await site.make("yet more", previous_response_id=response.id)
    assert [text for _, text in site.messages()] == ["one", "two", "more", TEXT, "yet more"]
    root = await site.make("anew", conversation=at(made, None))
    assert site.messages() == [("user", "anew")]
    assert (root.to_dict()["conversation"], (await links(rest, made))[-2]) == (at(made, None), ("anew", None))
    counted = await site.client.responses.input_tokens.count(model="m", input="x", conversation=at(made, "q"))
    assert counted.input_tokens > 0
    assert site.messages() == [("user", "one"), ("user", "x")]


async def test_what_is_added_and_moved_while_such_a_response_is_made(site: Site, rest: Rest) -> None:
    made = await begin(rest)
    running = asyncio.create_task(site.make([], conversation=at(made, "b"), fault="hold"))
    await until("it runs", lambda: site.engine.running == 1)
    assert (await rest.get(f"/{made}"))["running_response_id"].startswith("resp_")
    path = f"/{made}/items"
    assert await rest.refused("POST", path, items=[message("x")]) == LOCKED, "it follows the active item"
    assert await rest.refused("POST", path, items=[message("x")], parent_id="b") == LOCKED
    assert await rest.refused("DELETE", f"{path}/x") == LOCKED
    for conversation in (made, at(made, "b")):
        assert await refusal(site.make("x", conversation=conversation)) == LOCKED
    await rest.post(path, items=[message("C", id="c")], parent_id="x")
    await rest.post(f"/{made}", active_item_id="a")
    site.engine.release.set()
    response = await running
    assert (await rest.get(f"/{made}"))["active_item_id"] == "a", "the user has moved meanwhile"
    assert (await links(rest, made))[-2:] == [("C", "x"), (TEXT, "b")]
    await rest.post(path, items=[message("x")], parent_id=response.output[0].id)


async def test_a_response_that_continues_the_active_branch_locks_all_of_it(site: Site, rest: Rest) -> None:
    made = await begin(rest)
    running = asyncio.create_task(site.make([], conversation={"id": made}, fault="hold"))
    await until("it runs", lambda: site.engine.running == 1)
    assert await refusal(site.make([], conversation=at(made, "a"))) == LOCKED
    assert await rest.refused("POST", f"/{made}/items", items=[message("x")], parent_id="a") == LOCKED
    assert await rest.refused("POST", f"/{made}", active_item_id="a") == LOCKED
    site.engine.release.set()
    assert (await running).to_dict()["conversation"] == {"id": made}


@pytest.mark.parametrize(
    ("parent_id", "told"),
    [
        ("none", (404, "conversation_item_not_found", "conversation.parent_id")),
        ("\x00", (404, "conversation_item_not_found", "conversation.parent_id")),
        (7, (400, "invalid_request", "conversation.parent_id")),
    ],
)
async def test_below_an_unknown_item_nothing_is_made_or_written(
    parent_id: Any, told: tuple[int, str, str], site: Site, rest: Rest
) -> None:
    made = await begin(rest)
    before = await links(rest, made)
    for fields in ({}, {"stream": True}, {"background": True}):
        assert await refusal(site.make("x", conversation=at(made, parent_id), **fields)) == told
    assert site.engine.requests == []
    assert await links(rest, made) == before
    state = await rest.get(f"/{made}")
    assert (state["active_item_id"], state["running_response_id"]) == ("b", None)
    other = await rest.post("", items=[message("elsewhere", id="other")])
    assert await refusal(site.make("x", conversation=at(made, "other"))) == (
        404,
        "conversation_item_not_found",
        "conversation.parent_id",
    )
    assert (await rest.get(f"/{other['id']}"))["item_count"] == 1


async def test_in_the_background_and_over_websocket_it_means_the_same(site: Site, rest: Rest) -> None:
    async with socket(site.gateway) as client:
        made = await begin(rest)
        late = await site.make([], conversation=at(made, "a"), background=True)
        assert late.to_dict()["conversation"] == at(made, "a")
        await site.over(late.id)
        assert (await links(rest, made))[-1] == (TEXT, "a")
        assert (await client.create("deep", conversation=at(made, "q")))["conversation"] == at(made, "q")
        assert (await links(rest, made))[-2] == ("deep", "q")
        assert (await rest.get(f"/{made}"))["active_item_id"] == "b"


BEGUN = "The quick brown"
RESPONSES = "/v1/responses"


def cut(text: str, **fields: Any) -> dict[str, Any]:
    """An answer that was cut off, as a page adds it."""
    return message(text, "assistant", status="incomplete", **fields)


def deltas(stream: bytes) -> str:
    """What the events of a response have said so far. The last event may be cut."""
    events = [each.partition("data: ")[2] for each in stream.decode(errors="ignore").split("\n\n")[:-1]]
    told = [json.loads(event) for event in events if event.startswith("{")]
    return "".join(each["delta"] for each in told if each["type"] == "response.output_text.delta")


async def texts(rest: Rest, conversation_id: str) -> list[tuple[str, str]]:
    """Status and text of the active branch's messages, the oldest first."""
    listed = await rest.get(f"/{conversation_id}/items?order=asc")
    return [(item["status"], text_of(item)) for item in listed["data"]]


async def until_said(answer: aiohttp.ClientResponse, text: str) -> bytes:
    """What a client has of a stream as soon as it was told this text."""
    sent = b""
    while text not in deltas(sent):
        sent += await answer.content.readany()
    return sent


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    needed("binary")
    with real_engines("binary", tmp_path_factory.mktemp("engines")) as made:
        yield made


@pytest.fixture
async def gateway(real: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with responses_gateway(real) as site:
        yield site


@pytest.mark.engines
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("plain", SENTENCE.removeprefix(BEGUN)),
        # Our worker does not go on: it answers anew.
        ("worker", SENTENCE),
    ],
)
async def test_a_cut_answer_is_continued(gateway: GatewayHarness, model: str, text: str, is_stream: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        rest = Rest(Site(gateway, None, client))  # type: ignore[arg-type]
        made = await rest.post("", items=[message("Hi"), cut(BEGUN)])
        asked: Any = {"model": model, "input": [], "conversation": made["id"], "temperature": 0}
        if is_stream:
            async with client.responses.stream(**asked) as stream:
                response = await stream.get_final_response()
        else:
            response = await client.responses.create(**asked)
        assert response.output_text == text
        items = (await rest.get(f"/{made['id']}/items?order=asc"))["data"]
        assert [(each["status"], text_of(each)) for each in items[1:]] == [("incomplete", BEGUN), ("completed", text)]
        assert items[2]["parent_id"] == items[1]["id"]


@pytest.mark.engines
async def test_an_answer_that_its_token_limit_cut_is_continued(gateway: GatewayHarness) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        rest = Rest(Site(gateway, None, client))  # type: ignore[arg-type]
        made = await rest.post("")
        asked: Any = {"model": "plain", "conversation": made["id"], "temperature": 0}
        first = await client.responses.create(**asked, input="Hi", max_output_tokens=3)
        assert (first.status, first.output_text) == ("incomplete", BEGUN)
        second = await client.responses.create(**asked, input=[])
        assert first.output_text + second.output_text == SENTENCE
        assert (await texts(rest, made["id"]))[1:] == [
            ("incomplete", BEGUN),
            ("completed", SENTENCE.removeprefix(BEGUN)),
        ]


async def test_both_parts_are_one_message_for_the_next_answer(site: Site, rest: Rest) -> None:
    made = await rest.post(
        "", items=[message("Hi"), cut("one tw"), message("o three", "assistant"), message("four", "assistant")]
    )
    await site.make("And?", conversation=made["id"])
    assert site.messages() == [("user", "Hi"), ("assistant", "one two three\n\nfour"), ("user", "And?")]


async def test_of_a_stream_that_was_stopped_the_page_adds_what_it_has(site: Site, rest: Rest) -> None:
    made = await rest.post("", items=[message("Hi", id="q")])
    fields = {"conversation": made["id"], "fault": "pause_until_release", "after": 3, "input": []}
    async with open_stream(site.gateway, path=RESPONSES, **fields) as answer:
        sent = await until_said(answer, WORDS[2])
        assert await stop(site.gateway) == 204
        sent += await answer.content.read()
    partial = deltas(sent)
    assert partial.split() == WORDS[:3]
    # Neither the question nor the answer went, and nothing is locked.
    assert await texts(rest, made["id"]) == [("completed", "Hi")]
    added = await rest.post(f"/{made['id']}/items", items=[cut(partial)], parent_id="q")
    assert added["data"][0]["status"] == "incomplete"
    assert await texts(rest, made["id"]) == [("completed", "Hi"), ("incomplete", partial)]
    await site.make([], conversation=made["id"])
    assert site.messages() == [("user", "Hi"), ("assistant", partial)]
    # The same text is in the response, for a page that lost it.
    response_id = json.loads(sent.decode().partition("data: ")[2].partition("\n")[0])["response"]["id"]
    kept = await site.client.responses.retrieve(response_id)
    assert (kept.status, kept.output_text) == ("cancelled", partial)


async def test_of_a_gateway_that_died_the_stream_has_what_the_page_adds(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with process_site(tmp_path, engine) as (process, site):
            made = await Rest(site).post("", items=[message("Hi", id="q")])
            fields = {"conversation": made["id"], "fault": "pause_until_release", "after": 3, "input": []}
            async with open_stream(site.gateway, path=RESPONSES, **fields) as answer:
                sent = await until_said(answer, WORDS[2])
                process.kill()
                await process.wait()
        async with process_site(tmp_path, engine) as (_, site):
            await site.gateway.publish(route("m", [engine.url]))
            rest = Rest(site)
            read = await read_again(site.gateway)
            assert (read.body[: len(sent)], read.state) == (sent, "cut")
            partial = deltas(read.body)
            assert partial.split() == WORDS[:3]
            assert (await rest.get(f"/{made['id']}"))["running_response_id"] is None
            await rest.post(f"/{made['id']}/items", items=[cut(partial)])
            await until("the engine noticed", lambda: engine.running == 0)
            await site.make([], conversation=made["id"])
            assert site.messages() == [("user", "Hi"), ("assistant", partial)]
            assert [text for _, text in await texts(rest, made["id"])][:2] == ["Hi", partial]


async def titled(rest: Rest, title: str, *texts: str) -> str:
    items = [message(text) for text in texts]
    return str((await rest.post("", metadata={"title": title}, items=items))["id"])


async def ids(rest: Rest, query: str = "") -> list[str]:
    return [entry["id"] for entry in (await rest.get(f"?{query}"))["data"]]


async def hits(rest: Rest, words: str) -> list[tuple[str, str | None, str, str, str]]:
    """The conversations that a search finds, with item and text of each hit."""
    page = await rest.get(f"?q={quote(words)}")
    return [(each["id"], *each["hit"].values()) for each in page["data"]]


async def test_conversations_are_listed_by_their_last_use(clock: Clock, site: Site, rest: Rest) -> None:
    first, second, third = [await titled(rest, str(number), "x") for number in range(3)]
    assert await ids(rest) == [third, second, first]
    clock.now += 5
    response = await site.make("one", conversation=first)
    [newest, *_] = (await rest.get(""))["data"]
    read = await rest.get(f"/{first}")
    assert newest == {name: value for name, value in read.items() if name != "settings"}
    assert newest["active_item_id"] == response.output[0].id
    assert (newest["model"], newest["item_count"], newest["metadata"]) == ("m", 3, {"title": "0"})
    assert newest["last_used_at"] - newest["created_at"] == 5
    assert newest["running_response_id"] is None
    clock.now += 5
    await rest.get(f"/{third}/items")
    await rest.post(f"/{second}", metadata={"title": "new"})
    assert await ids(rest) == [second, first, third], "reading does not count"
    assert await ids(rest, "order=asc") == [third, first, second]
    await rest.delete(f"/{first}")
    assert await ids(rest) == [second, third]


async def test_the_list_has_pages_and_refuses_what_cannot_be_asked(clock: Clock, rest: Rest) -> None:
    made = []
    for number in range(25):
        clock.now += number % 2  # two of each time
        made.append(await titled(rest, str(number)))
    first = await rest.get("")
    assert ([entry["id"] for entry in first["data"]], first["has_more"]) == (made[:4:-1], True)
    assert (first["object"], first["first_id"], first["last_id"]) == ("list", made[24], made[5])
    second = await rest.get(f"?after={first['last_id']}")
    assert ([entry["id"] for entry in second["data"]], second["has_more"]) == (made[4::-1], False)
    assert await ids(rest, f"order=asc&after={made[2]}&limit=3") == made[3:6]
    whole = await rest.get("?limit=25")
    assert (len(whole["data"]), whole["has_more"]) == (25, False)
    assert await ids(rest, f"q={'x' * 400}") == []
    wrong = {"after": "conv_none", "limit": 101, "order": "x", "q": "x" * 401}
    for place, value in wrong.items():
        assert await rest.refused("GET", f"?{place}={value}") == (400, "invalid_request", place)
    empty = await rest.get(f"?after={made[0]}")
    assert (empty["data"], empty["first_id"], empty["last_id"], empty["has_more"]) == ([], None, None, False)


async def test_a_list_has_what_its_caller_may_see() -> None:
    keys = (key("all", tenant="t"), key("some", tenant="t", models=("n",)), key("theirs", tenant="u"))
    async with engines(1) as (other,), response_state.site(route("n", [other.url]), keys=keys) as site:
        everything, some, theirs = (rest(site, name) for name in ("all", "some", "theirs"))
        of_m, of_n, of_none = [await titled(everything, name, "needle") for name in "mn0"]
        await site.make("one", conversation=of_m)
        await site.make("one", model="n", conversation=of_n)
        assert await ids(everything) == [of_n, of_m, of_none]
        assert await ids(some) == [of_n, of_none]
        assert await ids(some, "q=needle") == [of_n, of_none]
        assert await some.refused("GET", f"?after={of_m}") == (400, "invalid_request", "after")
        for query in ("", "q=needle"):
            assert await ids(theirs, query) == []
        assert await theirs.refused("GET", f"?after={of_m}") == (400, "invalid_request", "after")


async def test_what_has_expired_is_not_listed(clock: Clock) -> None:
    async with response_state.site(responses_retention_h=1) as site:
        rest = Rest(site)
        old = await titled(rest, "x")
        clock.now += 2000
        new = await titled(rest, "x")
        clock.now += 2000
        assert await ids(rest) == await ids(rest, "q=x") == [new]
        assert await rest.refused("GET", f"?after={old}") == (400, "invalid_request", "after")


async def test_where_nothing_is_stored_the_list_is_empty() -> None:
    async with response_state.site(responses_retention_h=0) as site:
        assert (await rest(site).get("?q=x"))["data"] == []


async def test_titles_and_texts_are_searched(site: Site, rest: Rest) -> None:
    made = await titled(rest, "The weather in Bonn", "How is it today?", "Sunny, or\n\n  rainy, today.")
    items = (await rest.get(f"/{made}/items?order=asc"))["data"]
    other = await titled(rest, "Recipes", "Bonn has good cakes")
    await site.make("And more", conversation=other)
    [cakes, _, answer] = (await rest.get(f"/{other}/items?order=asc"))["data"]
    assert await hits(rest, "bonn") == [
        (other, cakes["id"], "", "Bonn", " has good cakes"),
        (made, None, "The weather in ", "Bonn", ""),
    ]
    assert await hits(rest, "TODAY") == [(made, items[1]["id"], "Sunny, or rainy, ", "today", ".")], "the newest"
    assert await hits(rest, "today how") == [(made, items[0]["id"], "How is it ", "today", "?")], "in one item"
    assert await hits(rest, "sunny how") == []
    assert await hits(rest, WORDS[1]) == [(other, answer["id"], *TEXT.partition(WORDS[1]))]
    assert await ids(rest, "q=%20") == [other, made], "no word"
    [entry] = (await rest.get("?q=sunny"))["data"]
    assert "hit" in entry
    assert all("hit" not in each for each in (await rest.get(""))["data"])
    # What is deleted is not found, and what is moved away from is.
    await rest.post(f"/{made}", active_item_id=None)
    assert [hit[0] for hit in await hits(rest, "sunny")] == [made]
    await rest.delete(f"/{made}/items/{items[1]['id']}")
    assert await hits(rest, "sunny") == []


@pytest.mark.parametrize(
    ("text", "words", "match"),
    [
        ("Die Straße nach Süden", "STRASSE", "Straße"),
        ("Die Straße nach Süden", "su\u0308den", "Süden"),
        ("Die Straße nach Süden", "nach", "nach"),
        ("京都と東京へ行きました", "東京", "東京"),
        ("\uff46\uff55\uff4c\uff4c \uff57\uff49\uff44\uff54\uff48", "width", "width"),
        ("Москва и ΣΊΣΥΦΟΣ", "σίσυφος", "ΣΊΣΥΦΟΣ"),
        ("हिन्दी में लिखा", "हिन्दी", "हिन्दी"),
        ("مرحبا بالعالم", "العالم", "العالم"),
        ("🙂 an emoji 👩‍👩‍👧", "👩‍👩‍👧", "👩‍👩‍👧"),
        ("50% of a_b, a*b OR \"c\" AND NEAR(d) 'e' \\ -f", "50% a_b a*b OR \"c\" NEAR(d) 'e' \\ -f", "50%"),
        ("x\x00y", "x\x00y", "x\x00y"),
        ("half \ud83d of a pair", "half of", "half"),
        ("{\"json\": 1}", "{\"json\"", "{\"json\""),
    ],
)  # fmt: skip
async def test_every_language_is_searched_and_no_text_is_a_wrong_query(
    text: str, words: str, match: str, rest: Rest
) -> None:
    made = await titled(rest, "title", text)
    await titled(rest, "another", "something else")
    [(found, _, before, matched, after)] = await hits(rest, words)
    assert (found, matched) == (made, match)
    assert match in before + matched + after


async def test_calls_of_tools_are_searched_and_thoughts_are_not(rest: Rest) -> None:
    items: list[Any] = [
        {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": '{"city": "Bonn"}'},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "secretly"}]},
    ]
    made = await rest.post("", items=items)
    for words in ("look_up", "bonn", "sunny"):
        assert [hit[0] for hit in await hits(rest, words)] == [made["id"]]
    assert await hits(rest, "secretly") == []


async def test_a_long_search_pauses_and_finds_the_same(monkeypatch: pytest.MonkeyPatch, rest: Rest) -> None:
    made = [await titled(rest, str(number), "needle" if number % 3 else "hay") for number in range(30)]
    wanted = [each for number, each in enumerate(made) if number % 3][::-1]
    monkeypatch.setattr(conversation_table, "SLICE_S", 0.0)
    first, other = await asyncio.gather(rest.get("?q=needle&limit=15"), rest.get("?q=hay"))
    assert ([entry["id"] for entry in first["data"]], first["has_more"]) == (wanted[:15], True)
    assert [entry["id"] for entry in other["data"]] == made[::3][::-1]
    last = await rest.get(f"?q=needle&limit=15&after={wanted[14]}")
    assert ([entry["id"] for entry in last["data"]], last["has_more"]) == (wanted[15:], False)
    assert await ids(rest, "limit=30") == made[::-1]
