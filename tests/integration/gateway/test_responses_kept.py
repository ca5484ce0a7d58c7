"""What is kept of responses, for how long, and what happens where it cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import openai
import pytest

from controller.schema.errors import ERROR_CODES
from tests.fakes.gateway_harness import until
from tests.fakes.mock_engine import WORDS
from tests.support.queueing import Clock, clock
from tests.support.response_state import refusal, site

__all__ = ["clock"]

TEXT = " ".join(WORDS)
FIRST = [("user", "one"), ("assistant", TEXT)]
NOT_FOUND = (404, "response_not_found", "response_id")
NO_PREVIOUS = (400, "previous_response_not_found", "previous_response_id")


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
        assert (await here.store.submit_job(lambda database: database.count_stored())).responses == 0
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
        database: Any = here.store._file._database
        await here.store.submit_job(lambda _: database._db.execute("PRAGMA max_page_count = 1").fetchall())
        made = await here.make("x" * 200_000)
        assert made.output_text == TEXT
        assert f"the response {made.id} is not stored" in await logged(caplog)
        assert await refusal(here.client.responses.retrieve(made.id)) == NOT_FOUND
        assert await refusal(here.make("y", previous_response_id=made.id)) == NO_PREVIOUS
        assert await here.client.responses.retrieve(first.id) == first
        assert "roundhouse_gateway_store_failures_total 1.0" in await here.gateway.metrics()


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
            async with here.gateway.request("POST", "/v1/responses", data=body) as answer:
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
        database: Any = here.store._file._database
        await here.store.submit_job(lambda _: database._db.execute("ALTER TABLE responses RENAME TO away"))
        failed = (500, "response_store_failed", None)
        assert await refusal(here.client.responses.retrieve(made.id)) == failed
        assert await refusal(here.make("x", previous_response_id=made.id)) == failed
        assert await refusal(here.make("x", background=True)) == failed
        async with here.gateway.post("/v1/responses", model="m", input="x", background=True, stream=True) as answer:
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
            reply = await here.gateway.request(method, path)
            assert reply.error["next_steps"] == list(ERROR_CODES["response_not_found"].next_steps)
            assert reply.headers["x-should-retry"] == "false"
        async with here.gateway.request("PUT", "/v1/responses/resp_1") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET")


async def test_open_responses_is_asked_for_by_a_header() -> None:
    async with site() as here:
        names = {}
        for header in ({}, {"OpenResponses-Version": "2026-04-24"}):
            text_format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
            asked = {"model": "m", "input": "x", "text": {"format": text_format}}
            async with here.gateway.post("/v1/responses", asked, headers=header) as answer:
                names[bool(header)] = json.loads(await answer.text())["text"]["format"]["schema"]
        assert names == {False: {"type": "object"}, True: None}
