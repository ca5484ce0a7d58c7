"""Responses in the background, through the `openai` package."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList

from contract.errors import RoundhouseError
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines
from tests.fakes.mock_engine import PROMPT_TOKENS, WORDS
from tests.support import response_state
from tests.support.gateway_rest import nothing_left
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import key
from tests.support.raw_http import raw, request
from tests.support.response_state import Site, refusal, settled
from tests.support.responses import check_response
from tests.support.wait import until

__all__ = ["loop_clock"]

TEXT = " ".join(WORDS)
ONE_SLOT: dict[str, Any] = {"target_inflight": 1, "queue_limit": 2}


async def status_of(site: Site, response_id: str) -> str | None:
    return (await site.client.responses.retrieve(response_id)).status


@pytest.mark.parametrize("notices_leaving", [True, False], ids=["blocking engine", "gathered"])
async def test_it_goes_on_without_its_client(notices_leaving: bool) -> None:
    async with response_state.site(m={"notices_leaving": notices_leaving}) as site:
        first = await site.make("one")
        made = await site.make("two", background=True, previous_response_id=first.id, fault="hold")
        assert (made.status, made.background, made.output) == ("queued", True, [])
        await until("it runs", lambda: site.engine.running == 1)
        assert await status_of(site, made.id) == "in_progress"
        site.engine.release.set()
        over = await site.over(made.id)
        assert (over.status, over.output_text.strip(), over.created_at) == ("completed", TEXT, made.created_at)
        assert (over.usage and over.usage.input_tokens) == PROMPT_TOKENS
        assert site.messages() == [("user", "one"), ("assistant", first.output_text), ("user", "two")]
        await site.make("three", previous_response_id=made.id)
        assert site.messages()[-2][0] == "assistant"
        assert not site.running
        await nothing_left(site.gateway)


async def test_a_stream_goes_on_when_its_client_leaves(site: Site) -> None:
    stream = await site.client.responses.create(
        model="m", input="x", stream=True, background=True, extra_body={"fault": "pause_until_release"}
    )
    response_id = ""
    async for event in stream:
        if event.type == "response.created":
            response_id = event.response.id
            assert event.response.background is True
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    [exchange] = site.gateway.services.exchanges
    await until("it has left", lambda: exchange.answer.client_gone)
    assert await status_of(site, response_id) == "in_progress"
    site.engine.release.set()
    over = await site.over(response_id)
    assert (over.status, over.output_text.strip()) == ("completed", TEXT)
    assert site.engine.cancelled == 0
    assert 'client_disconnects_total{model="m",route="/v1/responses"} 1.0' in await site.gateway.metrics()


async def test_a_client_that_takes_nothing_does_not_hold_back_its_stream() -> None:
    async with response_state.site(client_timeout_s=30) as site:
        site.engine.words = ["x" * 20_000] * 400
        body = b'{"model": "m", "input": "x", "stream": true, "background": true}'
        async with raw(site.gateway, receive_bytes=4096) as client:
            client.write(request(target="/v1/responses", body=body))
            await until("it runs", lambda: len(site.running) == 1)
            [response_id] = site.running
            over = await site.over(response_id)
        assert (over.status, len(over.output_text)) == ("completed", 400 * 20_001)


async def test_what_waits_is_queued_and_what_may_not_wait_is_refused_at_once() -> None:
    async with response_state.site(m=ONE_SLOT) as site:
        first = await site.make(background=True, fault="hold")
        waiting = [await site.make(background=True) for _ in range(2)]
        assert [await status_of(site, each.id) for each in waiting] == ["queued", "queued"]
        assert (await refusal(site.make(background=True)))[:2] == (429, "queue_full")
        assert (await site.store.submit_job(lambda database: database.count_stored())).responses == 3
        site.engine.release.set()
        assert [(await site.over(each.id)).status for each in (first, *waiting)] == ["completed"] * 3
        await nothing_left(site.gateway)


async def test_of_a_thousand_at_once_no_more_are_taken_than_may_wait() -> None:
    async with response_state.site(m={"target_inflight": 4, "queue_limit": 20}) as site:
        body = {"model": "m", "input": "x", "background": True, "fault": "hold"}
        replies = await asyncio.gather(*(site.gateway.post("/v1/responses", body) for _ in range(1000)))
        assert Counter(reply.status for reply in replies) == {200: 24, 429: 976}
        assert len(site.running) == 24
        site.engine.release.set()
        await until("all are over", lambda: not site.running)
        await nothing_left(site.gateway)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fault": "error_json"}, "engine_error"),
        ({"fault": "die_mid_body"}, "engine_disconnected"),
        ({"fault": "garbage"}, "engine_disconnected"),
    ],
)
async def test_what_fails_is_stored_as_failed(fields: dict[str, str], reason: str) -> None:
    async with response_state.site(m={"notices_leaving": True}) as site:
        made = await site.make(background=True, **fields)
        assert made.status == "queued"
        over = await site.over(made.id)
        assert over.status == "failed"
        assert over.error is not None
        assert over.error.to_dict()["code"] == "server_error"
        assert over.error.to_dict()["reason"] == reason
        assert over.error.message
        pending = site.make(previous_response_id=made.id)
        assert await refusal(pending) == (400, "invalid_request", "previous_response_id")


async def test_one_whose_key_is_revoked_while_it_waits_fails() -> None:
    keys = (key("a"), key("a2", tenant="a"))
    async with response_state.site(keys=keys, m=ONE_SLOT) as site:
        await site.make(background=True, fault="hold")
        waiting = await site.make(background=True)
        await site.gateway.publish(route("m", [site.engine.url], **ONE_SLOT), keys=keys[1:])
        found = await site.as_key("a2").responses.retrieve(waiting.id)
        assert found.error is not None
        assert (found.status, found.error.to_dict()["reason"]) == ("failed", "invalid_api_key")


async def test_one_that_cannot_be_written_as_json_is_refused_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RoundhouseError("invalid_request", "The request is nested too deeply for its response to be stored.")

    monkeypatch.setattr(site.gateway.assistant.responses, "save_new_response", refuse)
    assert (await refusal(site.make(background=True)))[:2] == (400, "invalid_request")
    await site.gateway.get("/health")
    assert (site.running, [each.message for each in caplog.records if each.levelname == "ERROR"]) == ({}, [])


async def test_a_request_that_is_refused_is_refused_at_once(site: Site) -> None:
    assert (await refusal(site.make(background=True, temperature="hot")))[:2] == (400, "invalid_request")
    assert await refusal(site.make(background=True, store=False)) == (400, "invalid_request", "background")
    assert await refusal(site.make(background=True, previous_response_id="resp_x")) == (
        400,
        "previous_response_not_found",
        "previous_response_id",
    )
    assert (await site.store.submit_job(lambda database: database.count_stored())).responses == 0


async def test_it_counts_as_any_other() -> None:
    async with response_state.site(keys=(key("a", concurrency=1),)) as site:
        made = await site.make(background=True, fault="hold")
        assert (await site.gateway.get("/v1/models", headers={"x-api-key": "secret-a"})).status == 429, (
            "it has the key's one place"
        )
        site.engine.release.set()
        await nothing_left(site.gateway)
        assert (await site.over(made.id)).status == "completed"
        metrics = await site.gateway.metrics()
        assert 'requests_total{model="m",route="/v1/responses",status="200"} 1.0' in metrics
        assert f'gateway_tokens_total{{direction="out",model="m"}} {len(WORDS)}.0' in metrics
        assert f'key_tokens_total{{direction="out",key="a"}} {len(WORDS)}.0' in metrics


async def test_openais_client_that_blocks_asks_until_it_is_over(site: Site) -> None:
    def use() -> list[Any]:
        with openai.OpenAI(base_url=site.gateway.url + "/v1", api_key="none", max_retries=0) as client:
            made = client.responses.create(model="m", input="x", background=True)
            seen: list[Any] = [made.status]
            while made.status in ("queued", "in_progress"):
                made = client.responses.retrieve(made.id)
            items = list(client.responses.input_items.list(made.id))
            client.responses.delete(made.id)
            return [*seen, made.status, len(items)]

    assert await asyncio.to_thread(use) == ["queued", "completed", 1]


async def test_it_is_told_as_queued_once_it_is_stored(site: Site) -> None:
    async with site.held_store():
        pending = asyncio.create_task(site.make(background=True))
        await until("it is accepted", lambda: bool(site.running))
        await settled()
        assert not pending.done()
        assert site.engine.requests == [], "what cannot be stored is not asked for"
    made = await pending
    assert made.status == "queued"
    assert (await site.over(made.id)).output_text.strip() == TEXT


async def test_one_whose_client_leaves_before_it_is_stored_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with response_state.site() as site:
        server: Any = site.gateway.server
        async with site.held_store():
            answered, connections = server.server_state.total_requests, len(server.server_state.connections)
            async with raw(site.gateway) as client:
                body = b'{"model": "m", "input": "x", "background": true}'
                client.write(request(target="/v1/responses", body=body))
                await until("it is accepted", lambda: bool(site.running))
            await until("it is over", lambda: not site.running)
            await until("its client has left", lambda: len(server.server_state.connections) == connections)
        assert (await site.store.submit_job(lambda database: database.count_stored())).responses == 1
        await settled()
        assert server.server_state.total_requests == answered
        assert site.engine.requests == []
    assert "Exception" not in caplog.text


async def test_what_a_client_sends_behind_it_waits_for_its_turn(site: Site) -> None:
    body = b'{"model": "m", "input": "x", "background": true}'
    async with site.held_store(), raw(site.gateway) as client:
        client.write(request(target="/v1/responses", body=body) + request("GET", "/health") + b"garbage\r\n\r\n")
        await until("it is accepted", lambda: bool(site.running))
        await settled()
        assert client.answers == []
        site.let_go()
        answers = await client.to_the_end()
    assert [answer.status for answer in answers] == [200, 200, 400]
    assert json.loads(answers[0].body)["status"] == "queued"


async def test_every_state_suits_the_published_schemas(loop_clock: LoopClock) -> None:
    async with response_state.site(m=ONE_SLOT, request_timeout_s=30) as site:

        async def read(response_id: str, method: str = "GET", more: str = "") -> Any:
            return (await site.gateway.request(method, f"/v1/responses/{response_id}{more}")).success

        asked = {"model": "m", "input": "x", "background": True, "metadata": {"a": "b"}}
        queued = [(await site.gateway.post("/v1/responses", asked | more)).success for more in ({"fault": "hold"}, {})]
        running, waiting = (each["id"] for each in queued)
        await until("it runs", lambda: site.engine.running == 1)
        told = [*queued, await read(running), await read(waiting), await read(waiting, "POST", "/cancel")]
        await loop_clock.skip(35)
        await site.over(running)
        told.append(await read(running))
        assert told[-1]["error"]["reason"] == "request_timeout"
        await until("the engine stops", lambda: site.engine.cancelled == 1)
        statuses = [each["status"] for each in told]
        assert statuses == ["queued", "queued", "in_progress", "queued", "cancelled", "failed"]
        for response in told:
            check_response(response)
            assert response["metadata"] == {"a": "b"}
        made = await site.make(previous_response_id=(await site.make()).id)
        for item in (await read(made.id, more="/input_items"))["data"]:
            listed = {"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False}
            ResponseItemList.model_validate_json(json.dumps(listed), strict=True)


async def test_the_gateways_end_waits_for_it_and_then_ends_it_with_a_word(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        slow = route("slow", [engine.url])
        async with response_state.site(slow, state=tmp_path, shutdown_grace_s=60) as site:
            made = await site.make(model="slow", background=True, fault="hold")
            await until("it runs", lambda: engine.running == 1)
            asyncio.get_running_loop().call_later(0.5, engine.release.set)
        async with response_state.site(slow, state=tmp_path, shutdown_grace_s=0) as site:
            assert (await site.client.responses.retrieve(made.id)).output_text.strip() == TEXT
            engine.release.clear()
            late = await site.make(model="slow", background=True, fault="hold")
            await until("it runs", lambda: engine.running == 1)
        await until("the engine stops", lambda: engine.cancelled == 1)
        async with response_state.site(state=tmp_path) as site:
            found = await site.client.responses.retrieve(late.id)
        assert found.error is not None
        assert (found.status, found.error.to_dict()["reason"]) == ("failed", "gateway_stopping")
        assert "before the answer was complete" in found.error.message
