"""Cancellation of responses, in the background and as streams, through the `openai` package."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.gateway_harness import until
from tests.fakes.mock_engine import WORDS
from tests.support.gateway_rest import nothing_left
from tests.support.queueing import key
from tests.support.response_state import Site, refusal, site

TEXT = " ".join(WORDS)
ONE_SLOT: dict[str, Any] = {"target_inflight": 1, "queue_limit": 2}
NOT_FOUND = (404, "response_not_found", "response_id")


async def status_of(here: Site, response_id: str) -> str | None:
    """As it is told now."""
    return (await here.client.responses.retrieve(response_id)).status


async def test_a_stream_that_is_cancelled_before_its_first_event_is_told() -> None:
    async with site() as here:
        held: dict[str, Any] = {"stream": True, "background": True, "extra_body": {"fault": "hold"}}
        asking = asyncio.ensure_future(here.client.responses.create(model="m", input="x", **held))
        await until(lambda: here.engine.running == 1, "it runs")
        (response_id,) = here.running
        assert (await here.client.responses.cancel(response_id)).status == "cancelled"
        assert (await refusal(asking))[:2] == (409, "state_conflict")
        await nothing_left(here.gateway)


async def test_one_whose_client_leaves_before_it_knows_of_it_is_cancelled() -> None:
    async with site() as here:
        async with here.held_store():
            leaving = asyncio.create_task(here.make(background=True, fault="hold"))
            await until(lambda: bool(here.running), "it is accepted")
            leaving.cancel()
            await until(lambda: not here.running, "it is over")
        await nothing_left(here.gateway)
        assert not here.engine.requests


async def test_a_running_one_is_cancelled_and_stays_so() -> None:
    async with site(m=ONE_SLOT) as here:
        running = await here.make(background=True, fault="hold")
        waiting = await here.make(background=True)
        for made in (waiting, running):
            cancelled = await here.client.responses.cancel(made.id)
            assert (cancelled.id, cancelled.status, cancelled.output) == (made.id, "cancelled", [])
            assert await here.client.responses.cancel(made.id) == cancelled
            assert await here.client.responses.retrieve(made.id) == cancelled
        await until(lambda: here.engine.cancelled == 1, "the engine stops")
        assert len(here.engine.requests) == 1
        await nothing_left(here.gateway)
        assert (await here.make()).status == "completed", "its slot is free"


async def test_one_that_is_over_is_not_cancelled() -> None:
    async with site() as here:
        for made in (await here.make(), await here.over((await here.make(background=True)).id)):
            assert await here.client.responses.cancel(made.id) == made
        assert await refusal(here.client.responses.cancel("resp_x")) == NOT_FOUND


@pytest.mark.parametrize("background", [False, True])
async def test_a_stream_that_is_cancelled_ends_with_a_word(background: bool) -> None:
    async with site() as here:
        stream = await here.client.responses.create(
            model="m", input="x", stream=True, background=background, extra_body={"fault": "pause_until_release"}
        )
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and event.delta == "brown ":
                cancelled = await here.client.responses.cancel(events[0].response.id)
        last = events[-1]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
        assert cancelled == last.response
        assert (cancelled.output_text, cancelled.output[0].to_dict()["status"]) == ("The quick brown ", "incomplete")
        assert await here.client.responses.retrieve(cancelled.id) == cancelled
        await until(lambda: here.engine.cancelled == 1, "the engine stops")
        await nothing_left(here.gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_running_one_is_cancelled_before_it_is_deleted(stream: bool) -> None:
    async with site() as here:
        fault = "pause_until_release" if stream else "hold"
        asked = {"model": "m", "input": "x", "background": True, "stream": stream, "fault": fault}
        async with here.gateway.post("/v1/responses", **asked) as answer:
            await answer.content.readany()
            await until(lambda: here.engine.running == 1, "it runs")
            [run] = here.running.values()
            await here.client.responses.delete(run.context.id)
            assert await refusal(here.client.responses.retrieve(run.context.id)) == NOT_FOUND
            await answer.read()
        await until(lambda: here.engine.cancelled == 1, "the engine stops")
        await nothing_left(here.gateway)
        assert await refusal(here.client.responses.retrieve(run.context.id)) == NOT_FOUND


async def test_others_cannot_cancel_it() -> None:
    keys = (key("a"), key("b"))
    async with site(keys=keys) as here:
        made = await here.make(background=True, fault="hold")
        await until(lambda: here.engine.running == 1, "it runs")
        others = here.as_key("b").responses
        for asking in (others.retrieve(made.id), others.cancel(made.id), others.delete(made.id)):
            assert await refusal(asking) == NOT_FOUND
        assert await refusal(others.create(model="m", input="x", previous_response_id=made.id)) == (
            400,
            "previous_response_not_found",
            "previous_response_id",
        )
        assert await status_of(here, made.id) == "in_progress"
        here.engine.release.set()
