"""Stored responses, mostly through the `openai` package: continued, read, listed, deleted, each for its own tenant; how
long they are kept, and what happens where they cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import json
from operator import methodcaller
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseInputParam

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import WORDS
from tests.support import response_state
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import Clock, clock, key
from tests.support.response_state import Site, refusal, settled

__all__ = ["clock", "loop_clock"]

TEXT = " ".join(WORDS)
FIRST = [("user", "one"), ("assistant", TEXT)]
NO_ITEM = (400, "invalid_request", "input[0].id")
NOT_FOUND = (404, "response_not_found", "response_id")
NO_PREVIOUS = (400, "previous_response_not_found", "previous_response_id")


async def not_found(client: openai.AsyncOpenAI, response_id: str) -> None:
    """On every route of a stored response."""
    responses = client.responses
    for request in (responses.retrieve, responses.delete, responses.cancel, responses.input_items.list):
        assert await refusal(request(response_id)) == NOT_FOUND


async def test_a_conversation_goes_on_from_what_is_stored(site: Site) -> None:
    first = await site.make("one")
    assert site.messages() == [("user", "one")]
    second = await site.make("two", previous_response_id=first.id, instructions="Be brief.")
    assert site.messages() == [("system", "Be brief."), *FIRST, ("user", "two")]
    third = await site.make("three", previous_response_id=second.id)
    assert site.messages() == [*FIRST, ("user", "two"), ("assistant", TEXT), ("user", "three")]
    branch = await site.make("other", previous_response_id=first.id)
    assert site.messages() == [*FIRST, ("user", "other")]
    made = [first, second, third, branch]
    assert [each.previous_response_id for each in made] == [None, first.id, second.id, first.id]
    assert [await site.client.responses.retrieve(each.id) for each in made] == made
    assert len({each.id for each in made}) == 4


async def test_another_model_may_go_on() -> None:
    async with engines(1) as (other,), response_state.site(route("n", [other.url])) as site:
        first = await site.make("one")
        await site.client.responses.create(model="n", input="two", previous_response_id=first.id)
        assert [each["content"] for each in other.requests[0].body["messages"]] == ["one", TEXT, "two"]


@pytest.mark.parametrize("then", ["read", "continue", "refer", "cancel", "delete", "list"])
async def test_what_the_last_event_told_may_be_counted_on(site: Site, then: str) -> None:
    """The engine's connection may end later than its stream."""
    stream = await site.client.responses.create(model="m", input="one", stream=True, extra_body={"fault": "late_end"})
    told = None
    async for event in stream:
        if event.type == "response.completed":
            told = event.response
            break  # and not when the connection has ended
    assert told is not None
    assert site.engine.running == 1
    responses = site.client.responses
    if then == "read":
        assert await responses.retrieve(told.id) == told
    elif then == "continue":
        await site.make("two", previous_response_id=told.id)
        assert site.messages() == [("user", "one"), ("assistant", told.output_text), ("user", "two")]
    elif then == "refer":
        await responses.create(model="m", input=[{"type": "item_reference", "id": told.output[0].id or ""}])
        assert site.messages() == [("assistant", told.output_text)]
    elif then == "cancel":
        assert await responses.cancel(told.id) == told
    elif then == "delete":
        await responses.delete(told.id)
        assert await refusal(responses.retrieve(told.id)) == NOT_FOUND
    else:
        assert len([item async for item in responses.input_items.list(told.id)]) == 1
    assert site.engine.running == 1
    site.engine.release.set()
    await until(lambda: site.engine.running == 0, "the connection ends")
    if then != "delete":
        assert await responses.retrieve(told.id) == told
    else:
        assert await refusal(responses.retrieve(told.id)) == NOT_FOUND
    assert not site.running


async def test_items_are_listed_the_oldest_or_the_newest_first(site: Site) -> None:
    first = await site.make("one")
    given: ResponseInputParam = [
        {"role": "developer", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    second = await site.client.responses.create(model="m", input=given, previous_response_id=first.id)

    async def texts(**asked: Any) -> list[str]:
        pages = site.client.responses.input_items.list(second.id, **asked)
        return [item.to_dict()["content"][0]["text"] async for item in pages]  # type: ignore[index]

    assert await texts(order="asc") == ["one", TEXT, "two", "three"]
    assert await texts() == ["three", "two", TEXT, "one"]
    assert await texts(limit=1) == ["three", "two", TEXT, "one"], "page by page"
    page = await site.client.responses.input_items.list(second.id, limit=3, order="asc")
    assert (len(page.data), page.has_more, page.data[1].id) == (3, True, first.output[0].id)
    listed = (await site.gateway.get(f"/v1/responses/{second.id}/input_items?limit=2")).body
    assert (listed["object"], listed["has_more"]) == ("list", True)
    assert (listed["first_id"], listed["last_id"]) == (listed["data"][0]["id"], listed["data"][1]["id"])


async def test_a_list_that_cannot_be_is_refused(site: Site) -> None:
    made = await site.make()
    for query in ("limit=0", "limit=101", "limit=x", "limit=²", "limit=", "order=up", "after=msg_nobodys"):
        reply = await site.gateway.get(f"/v1/responses/{made.id}/input_items?{query}")
        assert (*reply.refusal, reply.error["param"]) == (400, "invalid_request", query.partition("=")[0])
        assert reply.error["request_id"] == reply.headers["x-request-id"]


async def test_items_are_referred_to_by_their_ids(site: Site) -> None:
    first = await site.make("one")
    reply = first.output[0].id
    assert reply is not None
    [asked] = [item async for item in site.client.responses.input_items.list(first.id)]
    assert asked.id is not None
    second = await site.client.responses.create(
        model="m",
        input=[{"type": "item_reference", "id": asked.id}, {"id": reply}, {"role": "user", "content": "two"}],
    )
    assert site.messages() == [*FIRST, ("user", "two")]
    listed = [item.id async for item in site.client.responses.input_items.list(second.id, order="asc")]
    assert listed[:2] == [asked.id, reply]
    unknown = site.client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_nobodys"}])
    assert await refusal(unknown) == NO_ITEM


async def test_what_is_deleted_is_gone_and_what_went_on_from_it_ends(site: Site) -> None:
    first = await site.make("one")
    second = await site.make("two", previous_response_id=first.id)
    deleted = (await site.gateway.request("DELETE", f"/v1/responses/{first.id}")).body
    assert deleted == {"id": first.id, "object": "response", "deleted": True}
    await not_found(site.client, first.id)
    for previous in (first.id, second.id):
        assert await refusal(site.make("x", previous_response_id=previous)) == NO_PREVIOUS
    assert (await site.client.responses.retrieve(second.id)) == second
    assert len(site.engine.requests) == 2


async def test_what_is_not_to_be_stored_is_not(site: Site) -> None:
    made = await site.make(store=False)
    assert made.to_dict()["store"] is False
    assert await refusal(site.client.responses.retrieve(made.id)) == NOT_FOUND
    assert await refusal(site.make(previous_response_id=made.id)) == NO_PREVIOUS
    kept = await site.make()
    again = await site.make("two", previous_response_id=kept.id, store=False)
    assert site.messages()[-3:] == [("user", "Hi"), ("assistant", TEXT), ("user", "two")]
    assert await refusal(site.client.responses.retrieve(again.id)) == NOT_FOUND


async def test_a_gateway_that_stores_nothing_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with response_state.site(responses_retention_h=0, state=folder) as site:
        made = await site.make()
        assert made.to_dict()["store"] is False
        await not_found(site.client, made.id)
        assert await refusal(site.make(previous_response_id=made.id)) == NO_PREVIOUS
        assert await refusal(site.make(background=True)) == (400, "invalid_request", "background")
        assert "stored" not in await site.gateway.metrics()
    assert not folder.exists()


async def test_a_tenant_is_all_its_keys_and_no_other() -> None:
    """On each route, another's response is as if there was none: test_access_matrix."""
    async with response_state.site(keys=(key("a"), key("a2", tenant="a"), key("b"))) as site:
        made = await site.make("one")
        assert await site.as_key("a2").responses.retrieve(made.id) == made
        await site.as_key("a2").responses.create(model="m", input="two", previous_response_id=made.id)
        assert site.messages()[:2] == FIRST
        item: ResponseInputParam = [{"type": "item_reference", "id": made.output[0].id or ""}]
        assert await refusal(site.as_key("b").responses.create(model="m", input=item)) == NO_ITEM


async def test_a_key_sees_responses_of_its_models_alone() -> None:
    keys = (key("a"), key("n", tenant="a", models=("n",)))
    async with engines(1) as (other,), response_state.site(route("n", [other.url]), keys=keys) as site:
        made = await site.make("one")
        limited = site.as_key("n")
        await not_found(limited, made.id)
        item: ResponseInputParam = [{"type": "item_reference", "id": made.output[0].id or ""}]
        assert await refusal(limited.responses.create(model="n", input=item)) == NO_ITEM
        assert (await site.client.responses.create(model="n", input=item)).status == "completed"
        asking = limited.responses.create(model="n", input="x", previous_response_id=made.id)
        assert await refusal(asking) == NO_PREVIOUS
        own = await limited.responses.create(model="n", input="one")
        assert await site.client.responses.retrieve(own.id) == own
        # Nobody knows the model any more, so its name counts.
        await site.gateway.publish(keys=keys)
        assert await limited.responses.retrieve(own.id) == own
        assert await refusal(limited.responses.retrieve(made.id)) == NOT_FOUND
        assert await site.client.responses.retrieve(made.id) == made


async def test_a_response_is_kept_for_its_time(clock: Clock) -> None:
    async with response_state.site(responses_retention_h=2) as site:
        first = await site.make("one")
        lonely = await site.make("alone")
        await site.client.responses.retrieve(lonely.id)  # by now it is stored
        clock.now += 1.5 * 3600
        second = await site.make("two", previous_response_id=first.id)
        await site.client.responses.retrieve(second.id)
        clock.now += 1.5 * 3600
        assert await refusal(site.client.responses.retrieve(lonely.id)) == NOT_FOUND
        assert await site.client.responses.retrieve(first.id) == first
        third = await site.make("three", previous_response_id=second.id)
        await site.client.responses.retrieve(third.id)
        clock.now += 2.1 * 3600
        assert await refusal(site.make("four", previous_response_id=second.id)) == NO_PREVIOUS


async def test_what_was_told_of_a_stream_that_its_client_left_is_kept(site: Site) -> None:
    stream = await site.client.responses.create(
        model="m", input="one", stream=True, extra_body={"fault": "pause_until_release"}
    )
    response_id = ""
    async for event in stream:
        if event.type == "response.created":
            response_id = event.response.id
            assert (await site.client.responses.retrieve(response_id)).status == "in_progress"
            items = [item async for item in site.client.responses.input_items.list(response_id)]
            assert len(items) == 1
            asking = site.make("x", previous_response_id=response_id)
            assert await refusal(asking) == (400, "invalid_request", "previous_response_id")
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    left = await site.over(response_id)
    assert left.status == "cancelled"
    assert left.output_text == "The quick brown "
    await until(lambda: site.engine.cancelled == 1, "the engine stops")
    asking = site.make("x", previous_response_id=response_id)
    assert await refusal(asking) == (400, "invalid_request", "previous_response_id")


async def test_what_nobody_was_told_of_is_not_stored(site: Site) -> None:
    await refusal(site.make(fault="error_json"))
    stream = site.client.responses.create(model="m", input="x", stream=True, extra_body={"fault": "error_json"})
    await refusal(stream)
    leaving = asyncio.create_task(site.make(fault="hold"))
    await until(lambda: site.engine.running == 1, "it runs")
    leaving.cancel()
    await until(lambda: site.engine.running == 0, "it is over")
    assert (await site.store.submit_job(lambda database: database.count_stored())).responses == 0
    assert not site.running


async def test_a_stream_that_fails_is_stored_as_failed(site: Site) -> None:
    stream = await site.client.responses.create(
        model="m", input="x", stream=True, extra_body={"fault": "die_mid_stream"}
    )
    response_id = ""
    with contextlib.suppress(openai.APIError):
        async for event in stream:
            response_id = event.response.id if event.type == "response.created" else response_id
    found = await site.client.responses.retrieve(response_id)
    assert (found.status, found.error is not None) == ("failed", True)
    assert found.output_text.startswith("The quick")


async def test_an_answer_that_cannot_be_stored_is_an_answer_nevertheless(caplog: pytest.LogCaptureFixture) -> None:
    async with response_state.site() as site:
        first = await site.make()
        database: Any = site.store._file._database
        await site.store.submit_job(lambda _: database._db.execute("PRAGMA max_page_count = 1").fetchall())
        made = await site.make("x" * 200_000)
        assert made.output_text == TEXT
        await until(lambda: f"the response {made.id} is not stored" in caplog.text, "it is logged")
        assert await refusal(site.client.responses.retrieve(made.id)) == NOT_FOUND
        assert await refusal(site.make("y", previous_response_id=made.id)) == NO_PREVIOUS
        assert await site.client.responses.retrieve(first.id) == first
        assert "roundhouse_gateway_store_failures_total 1.0" in await site.gateway.metrics()


async def test_what_is_nested_too_deeply_is_told_and_harms_nobody(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    answers = []
    for depth in range(900, 1000):
        deep = '{"a":' * depth + "1" + "}" * depth
        body = f'{{"model": "m", "input": [{{"role": "user", "content": "x", "more": {deep}}}]}}'
        reply = await site.gateway.request("POST", "/v1/responses", data=body)
        answers.append((reply.status, reply.body.get("id")))
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 400}
    assert statuses == sorted(statuses)
    for status, response_id in answers:
        if status == 200:
            lost = f"the response {response_id} is not stored: The request is nested too deeply" in caplog.text
            found = await site.gateway.get(f"/v1/responses/{response_id}")
            assert found.status == (404 if lost else 200)
    assert "Traceback" not in caplog.text
    await site.make()


async def test_a_database_that_fails_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    made = await site.make()
    database: Any = site.store._file._database
    await site.store.submit_job(lambda _: database._db.execute("ALTER TABLE responses RENAME TO away"))
    failed = (500, "response_store_failed", None)
    assert await refusal(site.client.responses.retrieve(made.id)) == failed
    assert await refusal(site.make("x", previous_response_id=made.id)) == failed
    assert await refusal(site.make("x", background=True)) == failed
    reply = await site.gateway.post("/v1/responses", model="m", input="x", background=True, stream=True)
    assert '"response_store_failed"' in reply.text
    assert (await site.make("x")).output_text == TEXT
    assert not site.running


async def test_open_responses_is_asked_for_by_a_header(site: Site) -> None:
    text_format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    body = {"model": "m", "input": "x", "text": {"format": text_format}}
    for headers, schema in (({}, {"type": "object"}), ({"OpenResponses-Version": "2026-04-24"}, None)):
        reply = await site.gateway.post("/v1/responses", body, headers=headers)
        assert json.loads(reply.text)["text"]["format"]["schema"] == schema


async def test_a_conversation_is_no_larger_than_a_request_may_be() -> None:
    async with response_state.site(max_body_mib=1) as site:
        first = await site.make("x" * 600_000)
        second = await site.make("y" * 600_000, previous_response_id=first.id)
        asking = site.make("z", previous_response_id=second.id)
        assert await refusal(asking) == (400, "invalid_request", "previous_response_id")
        assert (await site.make("z", previous_response_id=first.id)).status == "completed"


async def test_who_leaves_while_the_history_loads_is_not_served() -> None:
    async with response_state.site(keys=(key("a", requests_per_minute=100, concurrency=1),)) as site:
        first = await site.make()
        async with site.held_store():
            leaving = asyncio.create_task(site.make("two", previous_response_id=first.id))
            await until(lambda: site.store.waiting_count == 2, "it loads")
            leaving.cancel()
            await until(lambda: not site.gateway.services.exchanges, "it is over")
        await site.store.submit_job(methodcaller("find_response", "a", "x"))
        await settled()
        assert len(site.engine.requests) == 1
        await site.make("three", previous_response_id=first.id)  # its place among the key's requests is free again


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_that_loads_for_too_long_ends_the_request(stream: bool, loop_clock: LoopClock) -> None:
    async with response_state.site(request_timeout_s=30, hold_headers_s=5, heartbeat_s=5) as site:
        first = await site.make()
        body = {"model": "m", "input": "x", "previous_response_id": first.id, "stream": stream}
        async with site.held_store():
            asking = asyncio.create_task(site.gateway.post("/v1/responses", **body).__aenter__())
            await until(lambda: site.store.waiting_count == 2, "it loads")
            await loop_clock.skip(35)
            response = await asking
            text = await response.text()
            assert response.status == (200 if stream else 408)
            assert response.headers["x-request-id"]
        assert '"request_timeout"' in text
        assert (": ka\n\n" in text) is stream
        await site.make("two", previous_response_id=first.id)
        assert len(site.engine.requests) == 2


async def test_the_table_may_change_while_the_history_loads() -> None:
    async with response_state.site(m={"aliases": ("alias",)}) as site, engines(1) as (other,):
        first = await site.make()

        async def create() -> Any:
            return await site.client.responses.create(model="alias", input="two", previous_response_id=first.id)

        async with site.held_store():
            moved = asyncio.create_task(create())
            await until(lambda: site.store.waiting_count == 2, "it loads")
            await site.gateway.publish(route("m", [other.url]), route("n", [site.engine.url], aliases=("alias",)))
        await moved
        assert len(other.requests) == 1, "the model that was meant, at its new place"
        async with site.held_store():
            lost = asyncio.create_task(refusal(create()))
            await until(lambda: site.store.waiting_count == 2, "it loads")
            await site.gateway.publish()
        assert await lost == (404, "unknown_model", "model")


async def test_a_key_may_be_revoked_while_the_history_loads() -> None:
    async with response_state.site(keys=(key("a"),)) as site:
        first = await site.make()
        async with site.held_store():
            asking = asyncio.create_task(refusal(site.make("two", previous_response_id=first.id)))
            await until(lambda: site.store.waiting_count == 2, "it loads")
            await site.gateway.publish(route("m", [site.engine.url]), keys=(key("b"),))
        assert (await asking)[:2] == (401, "invalid_api_key")
        assert len(site.engine.requests) == 1


async def test_a_request_without_history_waits_for_no_disk(site: Site) -> None:
    async with site.held_store():
        made = await site.make(store=False)
        assert made.output_text.strip() == TEXT
        kept = asyncio.create_task(site.make())
        await until(lambda: len(site.engine.requests) == 2, "its engine is asked")
        assert not kept.done()
    assert await site.client.responses.retrieve((await kept).id) == await kept


async def test_a_rate_limit_is_looked_at_before_the_disk() -> None:
    async with response_state.site(keys=(key("a", requests_per_minute=1),)) as site:
        made = await site.make()
        async with site.held_store():
            asking = site.make("two", previous_response_id=made.id)
            assert (await refusal(asking))[:2] == (429, "rate_limit_exceeded")
            assert site.store.waiting_count == 1


async def test_a_request_that_its_history_makes_impossible_costs_no_tokens() -> None:
    async with response_state.site(keys=(key("a", requests_per_minute=2),)) as site:
        for _ in range(5):
            assert await refusal(site.make("two", previous_response_id="resp_x")) == NO_PREVIOUS
        await site.make()


async def test_tokens_are_counted_with_the_history(site: Site) -> None:
    site.engine.answers["/v1/chat/completions/input_tokens"] = (
        b'HTTP/1.1 200 X\r\ncontent-length: 19\r\n\r\n{"input_tokens": 5}'
    )
    first = await site.make("one")
    counted = await site.client.responses.input_tokens.count(model="m", input="two", previous_response_id=first.id)
    assert counted.input_tokens == 5
    assert site.messages() == [*FIRST, ("user", "two")]
    asking = site.client.responses.input_tokens.count(model="m", input="two", previous_response_id="resp_x")
    assert await refusal(asking) == NO_PREVIOUS
