"""The tree of a conversation as a web page uses it: all branches, moves between them, answers made anew, imports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller.schema.admin import Capabilities
from tests.fakes.gateway_harness import until
from tests.fakes.mock_engine import WORDS
from tests.support.conversation_rest import Rest, message, rest, text_of
from tests.support.response_state import refusal, site

TEXT = " ".join(WORDS)


def tree(items: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """What each item says, and what its parent says; None: it has none."""
    texts = {item["id"]: text_of(item).strip() for item in items}
    return [(texts[item["id"]], texts.get(item["parent_id"])) for item in items]


async def branch(here: Rest, conversation_id: str) -> list[str]:
    """What the active branch says, the oldest first."""
    listed = await here.get(f"/{conversation_id}/items?order=asc&limit=100")
    return [text_of(item).strip() for item in listed["data"]]


async def test_all_branches_are_listed_in_the_order_in_which_they_were_added() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[message("one"), message("two", "assistant")])
        [_, two] = (await asking.get(f"/{made['id']}/items?branch=all"))["data"]
        await asking.post(f"/{made['id']}/items", items=[message("three")])
        await asking.post(f"/{made['id']}/items", items=[message("three again"), message("four")], parent_id=two["id"])
        page = await asking.get(f"/{made['id']}/items?branch=all&limit=1000")
        expected = [("one", None), ("two", "one"), ("three", "two"), ("three again", "two"), ("four", "three again")]
        assert tree(page["data"]) == expected
        assert page["has_more"] is False
        first = await asking.get(f"/{made['id']}/items?branch=all&limit=2")
        rest_of = await asking.get(f"/{made['id']}/items?branch=all&after={first['last_id']}")
        assert (first["has_more"], first["data"] + rest_of["data"]) == (True, page["data"])
        newest = await asking.get(f"/{made['id']}/items?branch=all&order=desc&limit=1")
        assert newest["data"] == page["data"][-1:]
        assert await branch(asking, made["id"]) == ["one", "two", "three again", "four"]
        for query, place in (("branch=some", "branch"), ("branch=all&limit=1001", "limit"), ("limit=101", "limit")):
            assert await asking.refused("GET", f"/{made['id']}/items?{query}") == (400, "invalid_request", place)


async def test_an_answer_is_made_anew_and_both_stay() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[])
        assert made["active_item_id"] is None
        first = await here.make("one", conversation=made["id"])
        [question, answer] = (await asking.get(f"/{made['id']}/items?branch=all"))["data"]
        assert (await asking.get(f"/{made['id']}"))["active_item_id"] == answer["id"] == first.output[0].id
        moved = await asking.post(f"/{made['id']}", active_item_id=question["id"])
        assert moved["active_item_id"] == question["id"]
        assert await branch(asking, made["id"]) == ["one"], "exactly that item, not what follows it"
        second = await here.make([], conversation=made["id"])
        assert here.messages() == [("user", "one")]
        items = (await asking.get(f"/{made['id']}/items?branch=all"))["data"]
        assert [(item["id"], item["parent_id"]) for item in items] == [
            (question["id"], None),
            (answer["id"], question["id"]),
            (second.output[0].id, question["id"]),
        ]
        assert (await asking.get(f"/{made['id']}"))["active_item_id"] == second.output[0].id
        # Back to the first answer, which is continued then.
        await asking.post(f"/{made['id']}", active_item_id=answer["id"])
        await here.make("two", conversation=made["id"])
        assert here.messages() == [("user", "one"), ("assistant", TEXT), ("user", "two")]
        # To before the beginning: the next message is another first one.
        assert (await asking.post(f"/{made['id']}", active_item_id=None))["active_item_id"] is None
        await here.make("anew", conversation=made["id"])
        assert here.messages() == [("user", "anew")]
        assert await branch(asking, made["id"]) == ["anew", TEXT]


async def test_the_active_branch_does_not_move_under_a_response() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[message("one"), message("two", "assistant")])
        [one, two] = (await asking.get(f"/{made['id']}/items?branch=all"))["data"]
        running = asyncio.create_task(here.make("three", conversation=made["id"], fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        assert (await asking.get(f"/{made['id']}"))["running_response_id"].startswith("resp_")
        [listed] = (await asking.get(""))["data"]
        assert listed["running_response_id"] == (await asking.get(f"/{made['id']}"))["running_response_id"]
        locked = (400, "conversation_locked", "conversation")
        assert await asking.refused("POST", f"/{made['id']}", active_item_id=one["id"]) == locked
        changed = await asking.post(f"/{made['id']}", settings={"a": 1}, metadata={"title": "x"})
        assert changed["active_item_id"] == two["id"]
        here.engine.release.set()
        response = await running
        moved = await asking.post(f"/{made['id']}", active_item_id=one["id"])
        assert (moved["running_response_id"], moved["active_item_id"]) == (None, one["id"])
        items = (await asking.get(f"/{made['id']}/items?branch=all"))["data"]
        assert items[-1]["id"] == response.output[0].id


async def test_a_deleted_item_is_not_active_any_more() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[message("one"), message("two")])
        [one, two] = (await asking.get(f"/{made['id']}/items?branch=all"))["data"]
        deleted = await asking.delete(f"/{made['id']}/items/{two['id']}")
        assert (deleted["active_item_id"], deleted["item_count"]) == (one["id"], 1)
        for wrong in (two["id"], "msg_none", "\x00"):
            told = await asking.refused("POST", f"/{made['id']}", active_item_id=wrong)
            assert told == (404, "conversation_item_not_found", "active_item_id")
        assert await asking.refused("POST", f"/{made['id']}", active_item_id=7) == (
            400, "invalid_request", "active_item_id",
        )  # fmt: skip
        assert (await asking.get(f"/{made['id']}"))["active_item_id"] == one["id"]


async def test_a_change_names_what_it_changes() -> None:
    async with site() as here:
        asking = rest(here)
        settings = {"system": "Be brief.", "temperature": 0.5, "tools": ["a", None], "deep": {"é": [1]}}
        made = await asking.post("", metadata={"title": "x"}, settings=settings, items=[message("one")])
        assert made["settings"] == settings
        assert (await asking.get(f"/{made['id']}")) == made
        moved = await asking.post(f"/{made['id']}", active_item_id=None)
        assert (moved["metadata"], moved["settings"]) == ({"title": "x"}, settings)
        titled = await asking.post(f"/{made['id']}", metadata={"title": "y"})
        assert (titled["metadata"], titled["settings"]) == ({"title": "y"}, settings)
        other = await asking.post(f"/{made['id']}", settings={})
        assert (other["metadata"], other["settings"]) == ({"title": "y"}, {})
        removed = await asking.post(f"/{made['id']}", settings=None)
        assert (removed["metadata"], removed["settings"]) == ({"title": "y"}, None)
        bare = await asking.post(f"/{made['id']}")
        assert bare["metadata"] == {}, "as at OpenAI, where `metadata` is all that there is"
        most = {"a": "x" * (65_536 - len('{"a":""}'))}
        assert (await asking.post(f"/{made['id']}", settings=most))["settings"] == most
        wrongs: list[Any] = [{"a": most["a"] + "x"}, [], "x"]
        for wrong in wrongs:
            for path in ("", f"/{made['id']}"):
                told = await asking.refused("POST", path, settings=wrong)
                assert told == (400, "invalid_request", "settings")
        assert (await asking.get(f"/{made['id']}"))["settings"] == most


async def test_a_tree_is_imported_in_one_request() -> None:
    async with site() as here:
        asking = rest(here)
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
        made = await asking.post("", items=items)
        listed = (await asking.get(f"/{made['id']}/items?branch=all"))["data"]
        assert tree(listed) == expected
        assert [item["id"] for item in listed] == ["q", "a1", "a2", "q2", "r", "q3"]
        assert await branch(asking, made["id"]) == ["hello", "first answer", "back"], "the last one is active"
        # In a second request, below items of the first one.
        other = await asking.post("", items=items[:2])
        added = await asking.post(f"/{other['id']}/items", items=items[2:])
        assert tree(listed)[3:] == tree([*listed[:2], *added["data"]])[3:]
        assert tree((await asking.get(f"/{other['id']}/items?branch=all"))["data"]) == expected
        # The conversation that was read is imported as it was told.
        copy = await asking.post("", items=listed)
        assert (await asking.get(f"/{copy['id']}/items?branch=all"))["data"] == listed


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
async def test_of_a_wrong_import_nothing_is_added(items: list[Any], told: tuple[int, str, str]) -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[message("one", id="first")])
        assert await asking.refused("POST", f"/{made['id']}/items", items=items) == told
        if told[2] != "items[1].id":
            assert await asking.refused("POST", "", items=items) == told
        assert [each["id"] for each in (await asking.get(""))["data"]] == [made["id"]]
        assert await branch(asking, made["id"]) == ["one"]
        assert (await asking.get(f"/{made['id']}"))["active_item_id"] == "first"


async def test_a_thousand_items_are_imported_at_once_and_read_at_once() -> None:
    async with site() as here:
        asking = rest(here)
        items = [
            message(f"number {number}", ("user", "assistant")[number % 2], id=f"i{number}") for number in range(1000)
        ]
        for number in range(2, 1000, 3):
            items[number]["parent_id"] = f"i{number // 2}"
        made = await asking.post("", items=items)
        assert (made["item_count"], made["active_item_id"]) == (1000, "i999")
        page = await asking.get(f"/{made['id']}/items?branch=all&limit=1000")
        assert [item["id"] for item in page["data"]] == [item["id"] for item in items]
        assert [item["parent_id"] for item in page["data"]] == [
            item.get("parent_id", f"i{number - 1}" if number else None) for number, item in enumerate(items)
        ]
        more = [message("x", id=f"j{number}", parent_id=f"i{number}") for number in range(1000)]
        await asking.post(f"/{made['id']}/items", items=more)
        assert (await asking.get(f"/{made['id']}"))["item_count"] == 2000
        assert await asking.refused("POST", f"/{made['id']}/items", items=[*more, message("x")]) == (
            400, "invalid_request", "items",
        )  # fmt: skip


async def test_no_branch_of_an_import_is_longer_than_what_may_be_continued() -> None:
    async with site(max_body_mib=1) as here:
        asking = rest(here)
        made = await asking.post("", items=[message("x" * 600_000, id="a")])
        fitting = [message("y" * 300_000, id="b", parent_id="a"), message("z" * 300_000, id="c", parent_id="a")]
        added = await asking.post(f"/{made['id']}/items", items=fitting)
        assert [item["parent_id"] for item in added["data"]] == ["a", "a"]
        for parent in ("b", "c"):
            told = await asking.refused(
                "POST",
                f"/{made['id']}/items",
                items=[message("v", parent_id=None), message("w" * 300_000, parent_id=parent)],
            )
            assert told == (400, "invalid_request", "items")
        assert (await asking.get(f"/{made['id']}"))["item_count"] == 3


async def test_an_item_is_added_to_the_place_that_its_request_says_and_not_where_it_was() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[message("one", id="a"), message("two", id="b")])
        copied = await asking.post("", items=[{"type": "item_reference", "id": "b"}])
        listed = (await asking.get(f"/{copied['id']}/items"))["data"]
        assert [(item["id"], item["parent_id"]) for item in listed] == [("b", None)]
        placed = [message("0", id="z"), {"id": "a", "parent_id": None}]
        again = await asking.post("", items=placed)
        listed = (await asking.get(f"/{again['id']}/items?branch=all"))["data"]
        assert [(item["id"], item["parent_id"]) for item in listed] == [("z", None), ("a", None)]
        assert made["item_count"] == 2


async def test_the_package_of_openai_goes_on_to_work() -> None:
    async with site() as here:
        conversations = here.client.conversations
        items: Any = [message(str(number)) for number in range(30)]
        made = await conversations.create(items=items, metadata={"title": "x"})
        assert made.to_dict()["item_count"] == 30
        added = await conversations.items.create(made.id, items=items)
        assert len(added.data) == 30
        every = [item async for item in conversations.items.list(made.id, order="asc", extra_query={"branch": "all"})]
        assert len(every) == 60
        assert (await conversations.update(made.id, metadata={})).metadata == {}
        assert await refusal(conversations.items.list(made.id, limit=101)) == (400, "invalid_request", "limit")


def image(size: int) -> dict[str, Any]:
    """A part with an image of so many characters of base64."""
    return {"type": "input_image", "image_url": f"data:image/png;base64,{'A' * size}", "detail": "low"}


async def test_a_conversation_with_fifty_images_is_read_without_them() -> None:
    async with site(max_body_mib=32, m={"capabilities": Capabilities(modalities=("text", "image"))}) as here:
        asking = rest(here)
        parts = [{"type": "input_text", "text": "Look"}, image(400_000)]
        items = [message(f"{number}", id=f"i{number}") | {"content": parts} for number in range(50)]
        made = await asking.post("", items=[*items, message("nothing", id="last")])
        path = f"/{made['id']}/items?branch=all&limit=1000"
        page = await asking.get(f"{path}&content=references")
        omitted = {"type": "input_image", "detail": "low", "omitted": {"media_type": "image/png", "bytes": 400_000}}
        assert [item["content"] for item in page["data"][:-1]] == [[parts[0], omitted]] * 50
        assert page["data"][-1]["content"] == [{"type": "input_text", "text": "nothing"}]
        assert len(str(page)) < 50_000
        active = await asking.get(f"/{made['id']}/items?content=references&limit=2")
        assert active["data"] == page["data"][:-3:-1]
        # Whole, one by one and all together.
        whole = await asking.get(f"/{made['id']}/items/i7")
        assert whole["content"] == parts
        assert (await asking.get(f"/{made['id']}/items?order=asc&limit=8"))["data"][7] == whole
        assert len((await asking.get(path))["data"]) == 51
        assert await asking.refused("GET", f"{path}&content=x") == (400, "invalid_request", "content")
        # A response is made from the whole items.
        await here.make([], conversation=made["id"])
        sent = here.engine.requests[-1].body["messages"]
        assert sent[0]["content"][1]["image_url"]["url"] == parts[1]["image_url"]


async def test_an_outline_is_no_item_that_can_be_sent_back() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[message("x") | {"content": [image(100)]}])
        [shown] = (await asking.get(f"/{made['id']}/items?content=references"))["data"]
        told = await asking.refused("POST", "", items=[shown])
        assert told == (400, "invalid_request", "items[0].content[0].image_url")


async def test_items_of_an_answer_name_their_response_and_have_its_figures() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[])
        async with here.client.responses.stream(model="m", input="one", conversation=made["id"]) as stream:
            streamed = await stream.get_final_response()
        whole = await here.make("two", conversation=made["id"], store=False)
        items = (await asking.get(f"/{made['id']}/items?branch=all&content=references"))["data"]
        assert [("answer" in item, text_of(item).strip()) for item in items] == [
            (False, "one"), (True, TEXT), (False, "two"), (True, TEXT),
        ]  # fmt: skip
        for item, response in ((items[1], streamed), (items[3], whole)):
            answer = item["answer"]
            figures = answer["figures"]
            assert answer["response_id"] == response.id
            assert (figures["model"], figures["usage"]) == ("m", response.to_dict()["usage"])
            # Both are there for a stream; that one is not before the other holds on any machine.
            is_stream = response is streamed
            assert (answer["took_ms"] is not None, figures["first_token_ms"] is not None) == (is_stream, is_stream)
            assert figures["total_ms"] >= (figures["first_token_ms"] or 0)
        assert (await asking.get(f"/{made['id']}/items/{items[1]['id']}"))["answer"] == items[1]["answer"]
        # A copy is no answer, and the engine is told nothing of it.
        copied = await asking.post("", items=[*items, message("three")])
        assert all("answer" not in item for item in (await asking.get(f"/{copied['id']}/items"))["data"])
        await here.make([], conversation=copied["id"])
        assert "took_ms" not in str(here.engine.requests[-1].body)
