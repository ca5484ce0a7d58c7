"""The list of a tenant's conversations, and the search in titles and texts."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from gateway.storage.conversations import listing
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines
from tests.fakes.mock_engine import WORDS
from tests.support import response_state
from tests.support.conversation_rest import Rest, message, rest
from tests.support.queueing import Clock, clock, key
from tests.support.response_state import Site

__all__ = ["clock"]

TEXT = " ".join(WORDS)


async def titled(rest: Rest, title: str, *texts: str) -> str:
    """The id of a new conversation with this title and messages."""
    items = [message(text) for text in texts]
    return str((await rest.post("", metadata={"title": title}, items=items))["id"])


async def ids(rest: Rest, query: str = "") -> list[str]:
    """The conversations of one page."""
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


async def test_the_list_has_pages(clock: Clock, rest: Rest) -> None:
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
    for query, place in (("after=conv_none", "after"), ("limit=101", "limit"), ("order=x", "order")):
        assert await rest.refused("GET", f"?{query}") == (400, "invalid_request", place)
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
    assert await hits(rest, WORDS[1]) == [(other, answer["id"], *here_is(TEXT, WORDS[1]))]
    assert await ids(rest, "q=%20") == [other, made], "no word"
    [entry] = (await rest.get("?q=sunny"))["data"]
    assert "hit" in entry
    assert all("hit" not in each for each in (await rest.get(""))["data"])
    # What is deleted is not found, and what is moved away from is.
    await rest.post(f"/{made}", active_item_id=None)
    assert [hit[0] for hit in await hits(rest, "sunny")] == [made]
    await rest.delete(f"/{made}/items/{items[1]['id']}")
    assert await hits(rest, "sunny") == []


def here_is(text: str, word: str) -> tuple[str, str, str]:
    """The hit of a word in a short text."""
    before, _, after = text.partition(word)
    return before, word, after


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
    monkeypatch.setattr(listing, "SLICE_S", 0.0)
    first, other = await asyncio.gather(rest.get("?q=needle&limit=15"), rest.get("?q=hay"))
    assert ([entry["id"] for entry in first["data"]], first["has_more"]) == (wanted[:15], True)
    assert [entry["id"] for entry in other["data"]] == made[::3][::-1]
    last = await rest.get(f"?q=needle&limit=15&after={wanted[14]}")
    assert ([entry["id"] for entry in last["data"]], last["has_more"]) == (wanted[15:], False)
    assert await ids(rest, "limit=30") == made[::-1]


async def test_a_search_has_a_longest_text(rest: Rest) -> None:
    assert await ids(rest, f"q={'x' * 400}") == []
    assert await rest.refused("GET", f"?q={'x' * 401}") == (400, "invalid_request", "q")
