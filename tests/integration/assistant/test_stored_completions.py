"""Stored chat completions through the `openai` package: kept, listed, filtered, changed, deleted, each for its own
tenant."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import PROMPT_TOKENS, WORDS
from tests.support import response_state
from tests.support.queueing import Clock, clock, key
from tests.support.response_state import Site, refusal

__all__ = ["clock"]

TEXT = " ".join(WORDS)
HI: list[Any] = [{"role": "user", "content": "Hi"}]
NOT_FOUND = (404, "completion_not_found", "completion_id")
NO_CURSOR = (400, "invalid_request", "after")


async def complete(client: openai.AsyncOpenAI, **fields: Any) -> ChatCompletion:
    """A completion that is stored, blocking, unless the fields say otherwise."""
    body: dict[str, Any] = {"model": "m", "messages": HI, "store": True, **fields}
    made: ChatCompletion = await client.chat.completions.create(**body)
    return made


async def not_found(client: openai.AsyncOpenAI, completion_id: str) -> None:
    """On every route of a stored completion."""
    completions = client.chat.completions
    for request in (
        completions.retrieve(completion_id),
        completions.update(completion_id, metadata={}),
        completions.delete(completion_id),
        completions.messages.list(completion_id),
    ):
        assert await refusal(request) == NOT_FOUND


async def test_a_completion_is_kept_read_changed_and_deleted(site: Site) -> None:
    completions = site.client.chat.completions
    made = await complete(site.client, metadata={"topic": "demo"}, temperature=0.5, seed=7)
    assert made.id.startswith("chatcmpl-")
    found = await completions.retrieve(made.id)
    assert found.choices == made.choices
    assert (found.usage, found.model, found.created) == (made.usage, made.model, made.created)
    more = found.to_dict()
    assert (more["metadata"], more["temperature"], more["seed"]) == ({"topic": "demo"}, 0.5, 7)
    assert more["request_id"] == made._request_id
    changed = await completions.update(made.id, metadata={"topic": "other"})
    assert changed.to_dict()["metadata"] == {"topic": "other"}
    assert await completions.retrieve(made.id) == changed
    assert (await completions.update(made.id, metadata=None)).to_dict()["metadata"] == {}
    deleted = await completions.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "chat.completion.deleted", True)
    await not_found(site.client, made.id)


@pytest.mark.parametrize("asks_for_usage", [True, False])
async def test_a_stream_is_kept_as_the_completion_that_it_told(*, asks_for_usage: bool) -> None:
    async with response_state.site() as site:
        options: Any = {"include_usage": True} if asks_for_usage else openai.omit
        stream = await site.client.chat.completions.create(
            model="m", messages=HI, store=True, stream=True, stream_options=options
        )
        chunks = [chunk async for chunk in stream]
        [completion_id] = {chunk.id for chunk in chunks}
        found = await site.client.chat.completions.retrieve(completion_id)
        told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert found.choices[0].message.content == told
        assert (found.object, found.choices[0].finish_reason) == ("chat.completion", "stop")
        assert found.usage is not None
        assert found.usage.prompt_tokens == PROMPT_TOKENS
        assert any(chunk.usage for chunk in chunks) is asks_for_usage


async def test_what_the_last_event_told_may_be_counted_on() -> None:
    """The engine's connection may end later than its stream."""
    async with response_state.site() as site, site.gateway.chat(stream=True, store=True, fault="late_end") as response:
        told = b""
        while b"[DONE]" not in told:
            told += await response.content.readany()
        assert site.engine.running == 1
        [listed] = (await site.client.chat.completions.list()).data
        assert f'"id":"{listed.id}"'.encode() in told
        site.engine.release.set()


async def test_what_is_not_to_be_kept_is_not(site: Site) -> None:
    client = site.client
    await complete(client, store=False)
    await complete(client, store=openai.omit)
    await refusal(complete(client, extra_body={"fault": "error_json"}))
    for fault in ("die_mid_stream", "error_event"):
        stream = await complete(client, stream=True, extra_body={"fault": fault})
        with pytest.raises(openai.APIError):
            [chunk async for chunk in stream]  # type: ignore[attr-defined]
    stream = await complete(client, stream=True, extra_body={"fault": "pause_until_release"})
    async for _ in stream:  # type: ignore[attr-defined]
        break
    await stream.close()  # type: ignore[attr-defined]
    await until(lambda: site.engine.running == 0, "the engine stops")
    assert (await client.chat.completions.list()).data == []


async def test_an_engine_is_not_told_what_is_the_gateways(site: Site) -> None:
    await complete(site.client, metadata={"a": "b"})
    assert not {"store", "metadata"} & site.engine.requests[-1].body.keys()
    await complete(site.client, store=False, metadata={"a": "b"})
    assert site.engine.requests[-1].body["metadata"] == {"a": "b"}
    assert site.engine.requests[-1].body["store"] is False
    for fields, place in (({"store": "yes"}, "store"), ({"metadata": {"a": 1}}, "metadata.a")):
        assert await refusal(complete(site.client, extra_body=fields)) == (400, "invalid_request", place)


async def test_the_list_is_paged_ordered_and_filtered() -> None:
    async with engines(1) as (other,), response_state.site(route("n", [other.url], aliases=("alias",))) as site:
        completions = site.client.chat.completions
        assert (await completions.list()).data == []
        made = [(await complete(site.client, metadata={"n": str(n), "odd": str(n % 2)})).id for n in range(4)]
        made.append((await complete(site.client, model="n")).id)

        async def listed(**asked: Any) -> list[str]:
            return [each.id async for each in completions.list(**asked)]

        assert await listed() == made
        assert await listed(order="desc") == made[::-1]
        assert await listed(limit=2) == made, "page by page"
        page = await completions.list(limit=2, after=made[1])
        assert ([each.id for each in page.data], page.has_more) == (made[2:4], True)
        assert await listed(model="m") == made[:4]
        assert await listed(model="alias") == made[4:]
        assert await listed(model="nobody") == []
        assert await listed(metadata={"odd": "1"}) == [made[1], made[3]]
        assert await listed(metadata={"odd": "1", "n": "3"}, order="desc", limit=1) == [made[3]]
        assert await listed(metadata={"odd": "1", "n": "2"}) == []
        await completions.update(made[3], metadata={"odd": "no"})
        assert await listed(metadata={"odd": "1"}) == [made[1]]
        await completions.delete(made[1])
        assert await listed(metadata={"odd": "1"}) == []
        assert await refusal(completions.list(after=made[1])) == NO_CURSOR
        fields = (await site.gateway.get("/v1/chat/completions?limit=1")).body
        assert (fields["object"], fields["first_id"], fields["last_id"]) == ("list", made[0], made[0])


async def test_messages_are_those_that_it_answers(site: Site) -> None:
    parts = [{"type": "text", "text": "what?"}, {"type": "text", "text": "this"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts, "name": "Ann"}]
    made = await complete(site.client, messages=messages)
    listed = site.client.chat.completions.messages
    found = [each.to_dict() async for each in listed.list(made.id)]
    assert [each["id"] for each in found] == [f"{made.id}-0", f"{made.id}-1"]
    assert [(each["role"], each["content"], each["content_parts"]) for each in found] == [
        ("system", "Be brief.", None),
        ("user", None, parts),
    ]
    assert found[1]["name"] == "Ann"
    ids = [each.id async for each in listed.list(made.id, order="desc", limit=1)]
    assert ids == [f"{made.id}-1", f"{made.id}-0"]
    assert await refusal(listed.list(made.id, after="x")) == NO_CURSOR


async def test_of_another_tenant_nothing_is_told_apart_from_nothing() -> None:
    keys = (key("mine", tenant="t"), key("theirs", tenant="u"), key("some", tenant="t", models=("n",)))
    async with engines(1) as (other,), response_state.site(route("n", [other.url]), keys=keys) as site:
        made = await complete(site.client)
        of_n = await complete(site.client, model="n")
        for name in ("theirs", "some"):
            other_key = site.as_key(name)
            await not_found(other_key, made.id)
            assert await refusal(other_key.chat.completions.list(after=made.id)) == NO_CURSOR
        assert (await site.as_key("theirs").chat.completions.list()).data == []
        assert [each.id async for each in site.as_key("some").chat.completions.list()] == [of_n.id]


async def test_a_completion_is_kept_for_its_time(clock: Clock) -> None:
    async with response_state.site(responses_retention_h=2) as site:
        made, lonely = [await complete(site.client) for _ in range(2)]
        await site.client.chat.completions.retrieve(lonely.id)
        clock.now += 1.5 * 3600
        await site.client.chat.completions.update(made.id, metadata={"a": "b"})
        clock.now += 1.5 * 3600
        assert await refusal(site.client.chat.completions.retrieve(lonely.id)) == NOT_FOUND
        assert [each.id async for each in site.client.chat.completions.list()] == [made.id]
        await site.store.submit_job(lambda database: database.sweep_expired())
        counted = await site.store.submit_job(lambda database: database.count_stored())
        assert counted.completions == 1


async def test_where_nothing_is_stored_a_request_passes_as_it_is() -> None:
    async with response_state.site(responses_retention_h=0) as site:
        made = await complete(site.client, metadata={"a": "b"})
        assert made.choices[0].message.content == TEXT
        assert site.engine.requests[-1].body["store"] is True
        assert (await site.client.chat.completions.list()).data == []
        assert await refusal(site.client.chat.completions.retrieve(made.id)) == NOT_FOUND


async def test_an_answer_that_cannot_be_stored_is_an_answer_nevertheless(caplog: pytest.LogCaptureFixture) -> None:
    async with response_state.site() as site:
        database: Any = site.store._file._database
        await site.store.submit_job(lambda _: database._db.execute("PRAGMA max_page_count = 1").fetchall())
        made = await complete(site.client, messages=[{"role": "user", "content": "x" * 200_000}])
        assert made.choices[0].message.content == TEXT
        await until(lambda: f"the chat completion {made.id} is not stored" in caplog.text, "it is said")
        assert await refusal(site.client.chat.completions.retrieve(made.id)) == NOT_FOUND
