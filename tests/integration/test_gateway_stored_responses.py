"""Stored responses through the `openai` package: continued, read, listed, deleted, each for its own tenant."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseInputParam

from controller.schema.error_codes import ERROR_CODES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import WORDS
from tests.support.queueing import Clock, clock, key
from tests.support.response_state import refusal, settled, site

__all__ = ["clock"]

TEXT = " ".join(WORDS)
FIRST = [("user", "one"), ("assistant", TEXT)]
NOT_FOUND = (404, "response_not_found", "response_id")
NO_PREVIOUS = (400, "previous_response_not_found", "previous_response_id")


async def test_a_conversation_goes_on_from_what_is_stored() -> None:
    async with site() as here:
        first = await here.make("one")
        assert here.messages() == [("user", "one")]
        second = await here.make("two", previous_response_id=first.id, instructions="Be brief.")
        assert here.messages() == [("system", "Be brief."), *FIRST, ("user", "two")]
        third = await here.make("three", previous_response_id=second.id)
        assert here.messages() == [*FIRST, ("user", "two"), ("assistant", TEXT), ("user", "three")]
        branch = await here.make("other", previous_response_id=first.id)
        assert here.messages() == [*FIRST, ("user", "other")]
        made = [first, second, third, branch]
        assert [each.previous_response_id for each in made] == [None, first.id, second.id, first.id]
        assert [await here.client.responses.retrieve(each.id) for each in made] == made
        assert len({each.id for each in made}) == 4


async def test_another_model_may_go_on() -> None:
    async with engines(1) as (other,), site(route("n", [other.url])) as here:
        first = await here.make("one")
        await here.client.responses.create(model="n", input="two", previous_response_id=first.id)
        assert [each["content"] for each in other.requests[0].body["messages"]] == ["one", TEXT, "two"]


@pytest.mark.parametrize("then", ["read", "continue", "refer", "cancel", "delete", "list"])
async def test_what_the_last_event_told_may_be_counted_on(then: str) -> None:
    """The engine's connection may end later than its stream."""
    async with site() as here:
        stream = await here.client.responses.create(
            model="m", input="one", stream=True, extra_body={"fault": "late_end"}
        )
        told = None
        async for event in stream:
            if event.type == "response.completed":
                told = event.response
                break  # and not when the connection has ended
        assert told is not None
        assert here.engine.running == 1
        responses = here.client.responses
        if then == "read":
            assert await responses.retrieve(told.id) == told
        elif then == "continue":
            await here.make("two", previous_response_id=told.id)
            assert here.messages() == [("user", "one"), ("assistant", told.output_text), ("user", "two")]
        elif then == "refer":
            await responses.create(model="m", input=[{"type": "item_reference", "id": told.output[0].id or ""}])
            assert here.messages() == [("assistant", told.output_text)]
        elif then == "cancel":
            assert await responses.cancel(told.id) == told
        elif then == "delete":
            await responses.delete(told.id)
            assert await refusal(responses.retrieve(told.id)) == NOT_FOUND
        else:
            assert len([item async for item in responses.input_items.list(told.id)]) == 1
        assert here.engine.running == 1
        here.engine.release.set()
        await until(lambda: here.engine.running == 0, "the connection ends")
        if then != "delete":
            assert await responses.retrieve(told.id) == told
        else:
            assert await refusal(responses.retrieve(told.id)) == NOT_FOUND
        assert not here.running


async def test_items_are_listed_the_oldest_or_the_newest_first() -> None:
    async with site() as here:
        first = await here.make("one")
        given: ResponseInputParam = [
            {"role": "developer", "content": "two"},
            {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
        ]
        second = await here.client.responses.create(model="m", input=given, previous_response_id=first.id)

        async def texts(**asked: Any) -> list[str]:
            pages = here.client.responses.input_items.list(second.id, **asked)
            return [item.to_dict()["content"][0]["text"] async for item in pages]  # type: ignore[index]

        assert await texts(order="asc") == ["one", TEXT, "two", "three"]
        assert await texts() == ["three", "two", TEXT, "one"]
        assert await texts(limit=1) == ["three", "two", TEXT, "one"], "page by page"
        page = await here.client.responses.input_items.list(second.id, limit=3, order="asc")
        assert (len(page.data), page.has_more, page.data[1].id) == (3, True, first.output[0].id)
        async with here.here.client.get(f"{here.here.url}/v1/responses/{second.id}/input_items?limit=2") as answer:
            listed = await answer.json()
        assert (listed["object"], listed["has_more"]) == ("list", True)
        assert (listed["first_id"], listed["last_id"]) == (listed["data"][0]["id"], listed["data"][1]["id"])


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=²", "limit"),
        ("limit=", "limit"),
        ("order=up", "order"),
        ("after=msg_nobodys", "after"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(query: str, place: str) -> None:
    async with site() as here:
        made = await here.make()
        async with here.here.client.get(f"{here.here.url}/v1/responses/{made.id}/input_items?{query}") as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"], error["param"]) == (400, "invalid_request", place)
            assert error["request_id"] == answer.headers["x-request-id"]


async def test_events_are_told_to_nobody_else() -> None:
    async with site() as here:
        made = await here.make()
        asking = here.client.responses.retrieve(made.id, stream=True)
        assert await refusal(asking) == (400, "invalid_request", "stream")
        assert (await here.client.responses.retrieve(made.id, stream=False)).id == made.id


async def test_items_are_referred_to_by_their_ids() -> None:
    async with site() as here:
        first = await here.make("one")
        reply = first.output[0].id
        assert reply is not None
        [asked] = [item async for item in here.client.responses.input_items.list(first.id)]
        assert asked.id is not None
        second = await here.client.responses.create(
            model="m",
            input=[
                {"type": "item_reference", "id": asked.id},
                {"id": reply},
                {"role": "user", "content": "two"},
            ],
        )
        assert here.messages() == [*FIRST, ("user", "two")]
        listed = [item.id async for item in here.client.responses.input_items.list(second.id, order="asc")]
        assert listed[:2] == [asked.id, reply]
        unknown = here.client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_nobodys"}])
        status, code, place = await refusal(unknown)
        assert (status, code) == (400, "invalid_request")
        assert place is not None
        assert place.startswith("input[0]")


async def test_what_is_deleted_is_gone_and_what_went_on_from_it_ends() -> None:
    async with site() as here:
        first = await here.make("one")
        second = await here.make("two", previous_response_id=first.id)
        async with here.here.client.delete(f"{here.here.url}/v1/responses/{first.id}") as answer:
            assert await answer.json() == {"id": first.id, "object": "response", "deleted": True}
        responses = here.client.responses
        for asking in (
            responses.retrieve(first.id),
            responses.delete(first.id),
            responses.cancel(first.id),
            responses.input_items.list(first.id),
        ):
            assert await refusal(asking) == NOT_FOUND
        for previous in (first.id, second.id):
            assert await refusal(here.make("x", previous_response_id=previous)) == NO_PREVIOUS
        assert (await responses.retrieve(second.id)) == second
        assert len(here.engine.requests) == 2


async def test_what_is_not_to_be_stored_is_not() -> None:
    async with site() as here:
        made = await here.make(store=False)
        assert made.to_dict()["store"] is False
        assert await refusal(here.client.responses.retrieve(made.id)) == NOT_FOUND
        assert await refusal(here.make(previous_response_id=made.id)) == NO_PREVIOUS
        kept = await here.make()
        again = await here.make("two", previous_response_id=kept.id, store=False)
        assert here.messages()[-3:] == [("user", "Hi"), ("assistant", TEXT), ("user", "two")]
        assert await refusal(here.client.responses.retrieve(again.id)) == NOT_FOUND


async def test_a_gateway_that_stores_nothing_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with site(responses_retention_h=0, state=folder) as here:
        made = await here.make()
        assert made.to_dict()["store"] is False
        responses = here.client.responses
        for asking in (
            responses.retrieve(made.id),
            responses.delete(made.id),
            responses.cancel(made.id),
            responses.input_items.list(made.id),
        ):
            assert await refusal(asking) == NOT_FOUND
        assert await refusal(here.make(previous_response_id=made.id)) == NO_PREVIOUS
        assert await refusal(here.make(background=True)) == (400, "invalid_request", "background")
        assert "stored" not in await here.here.metrics()
    assert not folder.exists()


async def test_tenants_know_nothing_of_each_other() -> None:
    keys = (key("a"), key("a2", tenant="a"), key("b"))
    async with site(keys=keys) as here:
        made = await here.make("one")
        mine, others = here.as_key("a2"), here.as_key("b")
        assert await mine.responses.retrieve(made.id) == made
        await mine.responses.create(model="m", input="two", previous_response_id=made.id)
        assert here.messages()[:2] == FIRST

        async def tries(response_id: str) -> list[Any]:
            responses = others.responses
            item: ResponseInputParam = [{"type": "item_reference", "id": made.output[0].id or ""}]
            said = []
            for asking in (
                responses.retrieve(response_id),
                responses.input_items.list(response_id),
                responses.cancel(response_id),
                responses.delete(response_id),
                responses.create(model="m", input="x", previous_response_id=response_id),
                responses.create(model="m", input=item),
            ):
                with pytest.raises(openai.APIStatusError) as caught:
                    await asking
                said.append((caught.value.status_code, re.sub(r"req-[\w-]+", "", caught.value.message)))
            return said

        known, unknown = await tries(made.id), await tries("resp_" + "0" * 48)
        assert [(status, said.replace(made.id, "resp_" + "0" * 48)) for status, said in known] == unknown
        assert await here.client.responses.retrieve(made.id) == made


async def test_a_key_sees_responses_of_its_models_alone() -> None:
    keys = (key("a"), key("n", tenant="a", models=("n",)))
    async with engines(1) as (other,), site(route("n", [other.url]), keys=keys) as here:
        made = await here.make("one")
        limited = here.as_key("n")
        assert await refusal(limited.responses.retrieve(made.id)) == NOT_FOUND
        assert await refusal(limited.responses.delete(made.id)) == NOT_FOUND
        assert await refusal(limited.responses.input_items.list(made.id)) == NOT_FOUND
        item: ResponseInputParam = [{"type": "item_reference", "id": made.output[0].id or ""}]
        assert await refusal(limited.responses.create(model="n", input=item)) == (400, "invalid_request", "input[0].id")
        assert (await here.client.responses.create(model="n", input=item)).status == "completed"
        asking = limited.responses.create(model="n", input="x", previous_response_id=made.id)
        assert await refusal(asking) == NO_PREVIOUS
        own = await limited.responses.create(model="n", input="one")
        assert await here.client.responses.retrieve(own.id) == own
        # Nobody knows the model any more, so its name counts.
        await here.here.publish(keys=keys)
        assert await limited.responses.retrieve(own.id) == own
        assert await refusal(limited.responses.retrieve(made.id)) == NOT_FOUND
        assert await here.client.responses.retrieve(made.id) == made


async def test_a_response_is_kept_for_its_time(clock: Clock) -> None:
    async with site(responses_retention_h=2) as here:
        first = await here.make("one")
        lonely = await here.make("alone")
        await here.client.responses.retrieve(lonely.id)  # by now it is stored
        clock.now += 1.5 * 3600
        second = await here.make("two", previous_response_id=first.id)
        await here.client.responses.retrieve(second.id)
        clock.now += 1.5 * 3600
        assert await refusal(here.client.responses.retrieve(lonely.id)) == NOT_FOUND
        assert await here.client.responses.retrieve(first.id) == first
        third = await here.make("three", previous_response_id=second.id)
        await here.client.responses.retrieve(third.id)
        clock.now += 2.1 * 3600
        assert await refusal(here.make("four", previous_response_id=second.id)) == NO_PREVIOUS


async def test_a_conversation_is_no_larger_than_a_request_may_be() -> None:
    async with site(max_body_mib=1) as here:
        first = await here.make("x" * 600_000)
        second = await here.make("y" * 600_000, previous_response_id=first.id)
        asking = here.make("z", previous_response_id=second.id)
        assert await refusal(asking) == (400, "invalid_request", "previous_response_id")
        assert (await here.make("z", previous_response_id=first.id)).status == "completed"


async def test_who_leaves_while_the_history_loads_is_not_served() -> None:
    async with site(keys=(key("a", requests_per_minute=100, concurrency=1),)) as here:
        first = await here.make()
        async with here.held_store():
            leaving = asyncio.create_task(here.make("two", previous_response_id=first.id))
            await until(lambda: here.store.waiting == 2, "it loads")
            leaving.cancel()
            server: Any = here.here.server
            exchanges = server._gateway.inference._parts.exchanges
            await until(lambda: not exchanges, "it is over")
        await here.store.find("a", "x")
        await settled()
        assert len(here.engine.requests) == 1
        await here.make("three", previous_response_id=first.id)  # its place among the key's requests is free again


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_that_loads_for_too_long_ends_the_request(stream: bool) -> None:
    async with site(request_timeout_s=0.5, hold_headers_s=0.1, heartbeat_s=0.1) as here:
        first = await here.make()
        asked = {"model": "m", "input": "x", "previous_response_id": first.id, "stream": stream}
        async with here.held_store(), here.here.post("/v1/responses", **asked) as answer:
            text = await answer.text()
            assert answer.status == (200 if stream else 408)
            assert answer.headers["x-request-id"]
        assert '"request_timeout"' in text
        assert (": ka\n\n" in text) is stream
        await here.make("two", previous_response_id=first.id)
        assert len(here.engine.requests) == 2


async def test_the_table_may_change_while_the_history_loads() -> None:
    async with site(m={"aliases": ("alias",)}) as here, engines(1) as (other,):
        first = await here.make()

        async def ask() -> Any:
            return await here.client.responses.create(model="alias", input="two", previous_response_id=first.id)

        async with here.held_store():
            moved = asyncio.create_task(ask())
            await until(lambda: here.store.waiting == 2, "it loads")
            await here.here.publish(route("m", [other.url]), route("n", [here.engine.url], aliases=("alias",)))
        await moved
        assert len(other.requests) == 1, "the model that was meant, at its new place"
        async with here.held_store():
            lost = asyncio.create_task(refusal(ask()))
            await until(lambda: here.store.waiting == 2, "it loads")
            await here.here.publish()
        assert await lost == (404, "unknown_model", "model")


async def test_a_key_may_be_revoked_while_the_history_loads() -> None:
    async with site(keys=(key("a"),)) as here:
        first = await here.make()
        async with here.held_store():
            asking = asyncio.create_task(refusal(here.make("two", previous_response_id=first.id)))
            await until(lambda: here.store.waiting == 2, "it loads")
            await here.here.publish(route("m", [here.engine.url]), keys=(key("b"),))
        assert (await asking)[:2] == (401, "invalid_api_key")
        assert len(here.engine.requests) == 1


async def test_a_request_without_history_waits_for_no_disk() -> None:
    async with site() as here:
        async with here.held_store():
            made = await here.make()
        assert await here.client.responses.retrieve(made.id) == made


async def test_a_rate_limit_is_looked_at_before_the_disk() -> None:
    async with site(keys=(key("a", requests_per_minute=1),)) as here:
        made = await here.make()
        async with here.held_store():
            asking = here.make("two", previous_response_id=made.id)
            assert (await refusal(asking))[:2] == (429, "rate_limit_exceeded")
            assert here.store.waiting == 1


async def test_a_request_that_its_history_makes_impossible_costs_no_tokens() -> None:
    async with site(keys=(key("a", requests_per_minute=2),)) as here:
        for _ in range(5):
            assert await refusal(here.make("two", previous_response_id="resp_x")) == NO_PREVIOUS
        await here.make()


async def test_tokens_are_counted_with_the_history() -> None:
    async with site() as here:
        here.engine.answers["/v1/chat/completions/input_tokens"] = (
            b'HTTP/1.1 200 X\r\ncontent-length: 19\r\n\r\n{"input_tokens": 5}'
        )
        first = await here.make("one")
        counted = await here.client.responses.input_tokens.count(model="m", input="two", previous_response_id=first.id)
        assert counted.input_tokens == 5
        assert here.messages() == [*FIRST, ("user", "two")]
        asking = here.client.responses.input_tokens.count(model="m", input="two", previous_response_id="resp_x")
        assert await refusal(asking) == NO_PREVIOUS


async def test_what_was_told_of_a_stream_that_its_client_left_is_kept() -> None:
    async with site() as here:
        stream = await here.client.responses.create(
            model="m", input="one", stream=True, extra_body={"fault": "pause_until_release"}
        )
        response_id = ""
        async for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
                assert (await here.client.responses.retrieve(response_id)).status == "in_progress"
                items = [item async for item in here.client.responses.input_items.list(response_id)]
                assert len(items) == 1
                asking = here.make("x", previous_response_id=response_id)
                assert await refusal(asking) == (400, "invalid_request", "previous_response_id")
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        left = await here.over(response_id)
        assert left.status == "cancelled"
        assert left.output_text == "The quick brown "
        await until(lambda: here.engine.cancelled == 1, "the engine stops")
        asking = here.make("x", previous_response_id=response_id)
        assert await refusal(asking) == (400, "invalid_request", "previous_response_id")


async def test_what_nobody_was_told_of_is_not_stored(clock: Clock) -> None:
    async with site() as here:
        await refusal(here.make(fault="error_json"))
        stream = here.client.responses.create(model="m", input="x", stream=True, extra_body={"fault": "error_json"})
        await refusal(stream)
        leaving = asyncio.create_task(here.make(fault="hold"))
        await until(lambda: here.engine.running == 1, "it runs")
        leaving.cancel()
        await until(lambda: here.engine.running == 0, "it is over")
        assert (await here.store._ask(lambda database: database.stored())).responses == 0
        assert not here.running


async def test_a_stream_that_fails_is_stored_as_failed() -> None:
    async with site() as here:
        stream = await here.client.responses.create(
            model="m", input="x", stream=True, extra_body={"fault": "die_mid_stream"}
        )
        response_id = ""
        with contextlib.suppress(openai.APIError):
            async for event in stream:
                response_id = event.response.id if event.type == "response.created" else response_id
        found = await here.client.responses.retrieve(response_id)
        assert (found.status, found.error is not None) == ("failed", True)
        assert found.output_text.startswith("The quick")


async def test_an_answer_that_cannot_be_stored_is_an_answer_nevertheless(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as here:
        first = await here.make()
        database: Any = here.store._database
        await here.store._ask(lambda _: database._db.execute("PRAGMA max_page_count = 1").fetchall())
        made = await here.make("x" * 200_000)
        assert made.output_text == TEXT
        assert f"the response {made.id} is not stored" in await logged(caplog)
        assert await refusal(here.client.responses.retrieve(made.id)) == NOT_FOUND
        assert await refusal(here.make("y", previous_response_id=made.id)) == NO_PREVIOUS
        assert await here.client.responses.retrieve(first.id) == first
        assert "roundhouse_gateway_store_failures_total 1.0" in await here.here.metrics()


async def logged(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged, once there is something."""
    await until(lambda: "is not stored" in caplog.text, "it is said")
    return caplog.text


async def test_what_is_nested_too_deeply_is_told_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as here:
        answers = []
        for depth in range(900, 1000):
            deep = '{"a":' * depth + "1" + "}" * depth
            body = f'{{"model": "m", "input": [{{"role": "user", "content": "x", "more": {deep}}}]}}'
            async with here.here.client.post(here.here.url + "/v1/responses", data=body) as answer:
                answers.append((answer.status, (await answer.json()).get("id")))
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 400}
        assert statuses == sorted(statuses)
        for status, response_id in answers:
            if status == 200:
                lost = f"the response {response_id} is not stored: The request is nested too deeply" in caplog.text
                found = await refusal_or(here.client.responses.retrieve(response_id))
                assert found == (NOT_FOUND if lost else response_id)
        assert "Traceback" not in caplog.text
        await here.make()


async def refusal_or(asking: Any) -> Any:
    """The refusal, or the response's id."""
    try:
        return (await asking).id
    except openai.APIStatusError as error:
        body: Any = error.body
        return error.status_code, body["code"], body["param"]


async def test_a_database_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as here:
        made = await here.make()
        database: Any = here.store._database
        await here.store._ask(lambda _: database._db.execute("ALTER TABLE responses RENAME TO away"))
        failed = (500, "response_store_failed", None)
        assert await refusal(here.client.responses.retrieve(made.id)) == failed
        assert await refusal(here.make("x", previous_response_id=made.id)) == failed
        assert await refusal(here.make("x", background=True)) == failed
        async with here.here.post("/v1/responses", model="m", input="x", background=True, stream=True) as answer:
            assert '"response_store_failed"' in await answer.text()
        assert (await here.make("x")).output_text == TEXT
        assert not here.running


async def test_every_answer_about_stored_responses_is_the_tables_own() -> None:
    async with site() as here:
        for method, path in (
            ("GET", "/v1/responses/resp_x"),
            ("DELETE", "/v1/responses/resp_x"),
            ("POST", "/v1/responses/resp_x/cancel"),
            ("GET", "/v1/responses/resp_x/input_items"),
        ):
            async with here.here.client.request(method, here.here.url + path) as answer:
                error = (await answer.json())["error"]
                assert error["next_steps"] == list(ERROR_CODES["response_not_found"].next_steps)
                assert answer.headers["x-should-retry"] == "false"
        async with here.here.client.put(f"{here.here.url}/v1/responses/resp_x") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET")


async def test_open_responses_is_asked_for_by_a_header() -> None:
    async with site() as here:
        names = {}
        for header in ({}, {"OpenResponses-Version": "2026-04-24"}):
            text_format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
            asked = {"model": "m", "input": "x", "text": {"format": text_format}}
            async with here.here.client.post(here.here.url + "/v1/responses", json=asked, headers=header) as answer:
                names[bool(header)] = json.loads(await answer.text())["text"]["format"]["schema"]
        assert names == {False: {"type": "object"}, True: None}
