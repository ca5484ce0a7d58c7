"""Responses in the background, through the `openai` package."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import PROMPT_TOKENS, WORDS
from tests.support.gateway_rest import nothing_left
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import key
from tests.support.raw_http import raw, request
from tests.support.response_state import Site, refusal, settled, site
from tests.support.responses import check_response

__all__ = ["loop_clock"]

TEXT = " ".join(WORDS)
ONE_SLOT: dict[str, Any] = {"target_inflight": 1, "queue_limit": 2}
NOT_FOUND = (404, "response_not_found", "response_id")


async def status_of(here: Site, response_id: str) -> str | None:
    """As it is told now."""
    return (await here.client.responses.retrieve(response_id)).status


@pytest.mark.parametrize("notices_leaving", [True, False], ids=["blocking engine", "gathered"])
async def test_it_goes_on_without_its_client(notices_leaving: bool) -> None:
    async with site(m={"notices_leaving": notices_leaving}) as here:
        first = await here.make("one")
        made = await here.make("two", background=True, previous_response_id=first.id, fault="hold")
        assert (made.status, made.background, made.output) == ("queued", True, [])
        await until(lambda: here.engine.running == 1, "it runs")
        assert await status_of(here, made.id) == "in_progress"
        here.engine.release.set()
        over = await here.over(made.id)
        assert (over.status, over.output_text.strip(), over.created_at) == ("completed", TEXT, made.created_at)
        assert over.usage is not None
        assert over.usage.input_tokens == PROMPT_TOKENS
        assert here.messages() == [("user", "one"), ("assistant", first.output_text), ("user", "two")]
        await here.make("three", previous_response_id=made.id)
        assert here.messages()[-2][0] == "assistant"
        assert not here.running
        await nothing_left(here.gateway)


async def test_a_stream_goes_on_when_its_client_leaves() -> None:
    async with site() as here:
        stream = await here.client.responses.create(
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
        server: Any = here.gateway.server
        [exchange] = server._gateway.inference._services.exchanges
        await until(lambda: exchange.answer.client_gone, "it has left")
        assert await status_of(here, response_id) == "in_progress"
        here.engine.release.set()
        over = await here.over(response_id)
        assert (over.status, over.output_text.strip()) == ("completed", TEXT)
        assert here.engine.cancelled == 0
        assert 'client_disconnects_total{model="m",route="/v1/responses"} 1.0' in await here.gateway.metrics()


async def test_a_client_that_takes_nothing_does_not_hold_back_its_stream() -> None:
    async with site(client_timeout_s=30) as here:
        here.engine.words = ["x" * 20_000] * 400
        body = b'{"model": "m", "input": "x", "stream": true, "background": true}'
        async with raw(here.gateway, receive_bytes=4096) as client:
            client.write(request(target="/v1/responses", body=body))
            await until(lambda: len(here.running) == 1, "it runs")
            [response_id] = here.running
            over = await here.over(response_id)
        assert over.status == "completed"
        assert len(over.output_text) == 400 * 20_001


async def test_what_waits_is_queued_and_what_may_not_wait_is_refused_at_once() -> None:
    async with site(m=ONE_SLOT) as here:
        first = await here.make(background=True, fault="hold")
        waiting = [await here.make(background=True) for _ in range(2)]
        assert [await status_of(here, each.id) for each in waiting] == ["queued", "queued"]
        assert (await refusal(here.make(background=True)))[:2] == (429, "queue_full")
        stored = await here.store.submit_job(lambda database: database.count_stored())
        assert stored.responses == 3
        here.engine.release.set()
        assert [(await here.over(each.id)).status for each in (first, *waiting)] == ["completed"] * 3
        await nothing_left(here.gateway)


async def test_a_thousand_at_once_are_no_more_than_may_wait() -> None:
    async with site(m={"target_inflight": 4, "queue_limit": 20}) as here:
        asked = {"model": "m", "input": "x", "background": True, "fault": "hold"}
        replies = await asyncio.gather(*(here.gateway.post("/v1/responses", asked) for _ in range(1000)))
        statuses = [reply.status for reply in replies]
        assert {status: statuses.count(status) for status in set(statuses)} == {200: 24, 429: 976}
        assert len(here.running) == 24
        here.engine.release.set()
        await until(lambda: not here.running, "all are over")
        await nothing_left(here.gateway)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fault": "error_json"}, "engine_error"),
        ({"fault": "die_mid_body"}, "engine_disconnected"),
        ({"fault": "garbage"}, "engine_disconnected"),
    ],
)
async def test_what_fails_is_stored_as_failed(fields: dict[str, str], reason: str) -> None:
    async with site(m={"notices_leaving": True}) as here:
        made = await here.make(background=True, **fields)
        assert made.status == "queued"
        over = await here.over(made.id)
        assert over.status == "failed"
        assert over.error is not None
        assert over.error.to_dict()["code"] == "server_error"
        assert over.error.to_dict()["reason"] == reason
        assert over.error.message
        asking = here.make(previous_response_id=made.id)
        assert await refusal(asking) == (400, "invalid_request", "previous_response_id")


async def test_one_that_takes_too_long_fails(loop_clock: LoopClock) -> None:
    async with site(request_timeout_s=30) as here:
        made = await here.make(background=True, fault="hold")
        await until(lambda: here.engine.running == 1, "it runs")
        await loop_clock.skip(35)
        over = await here.over(made.id)
        assert over.error is not None
        assert (over.status, over.error.to_dict()["reason"]) == ("failed", "request_timeout")
        await until(lambda: here.engine.cancelled == 1, "the engine stops")


async def test_one_whose_key_is_revoked_while_it_waits_fails() -> None:
    keys = (key("a"), key("a2", tenant="a"))
    async with site(keys=keys, m=ONE_SLOT) as here:
        await here.make(background=True, fault="hold")
        waiting = await here.make(background=True)
        await here.gateway.publish(route("m", [here.engine.url], **ONE_SLOT), keys=keys[1:])
        found = await here.as_key("a2").responses.retrieve(waiting.id)
        assert found.error is not None
        assert (found.status, found.error.to_dict()["reason"]) == ("failed", "invalid_api_key")


async def test_a_request_that_is_refused_is_refused_at_once() -> None:
    async with site() as here:
        assert (await refusal(here.make(background=True, temperature="hot")))[:2] == (400, "invalid_request")
        assert await refusal(here.make(background=True, store=False)) == (400, "invalid_request", "background")
        assert await refusal(here.make(background=True, previous_response_id="resp_x")) == (
            400,
            "previous_response_not_found",
            "previous_response_id",
        )
        assert (await here.store.submit_job(lambda database: database.count_stored())).responses == 0


async def test_it_counts_as_any_other() -> None:
    async with site(keys=(key("a", concurrency=1),)) as here:
        made = await here.make(background=True, fault="hold")
        async with here.gateway.get("/v1/models", headers={"x-api-key": "secret-a"}) as answer:
            assert answer.status == 429, "it has the key's one place"
        here.engine.release.set()
        await until(lambda: not here.running, "it is over")
        assert (await here.over(made.id)).status == "completed"
        metrics = await here.gateway.metrics()
        assert 'requests_total{model="m",route="/v1/responses",status="200"} 1.0' in metrics
        assert f'gateway_tokens_total{{direction="out",model="m"}} {len(WORDS)}.0' in metrics
        assert f'key_tokens_total{{direction="out",key="a"}} {len(WORDS)}.0' in metrics


async def test_it_is_told_as_queued_once_it_is_stored() -> None:
    async with site() as here:
        async with here.held_store():
            asking = asyncio.create_task(here.make(background=True))
            await until(lambda: bool(here.running), "it is accepted")
            await settled()
            assert not asking.done()
            assert here.engine.requests == [], "what cannot be stored is not asked for"
        made = await asking
        assert made.status == "queued"
        assert (await here.over(made.id)).output_text.strip() == TEXT


async def test_one_whose_client_leaves_before_it_is_stored_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as here:
        server: Any = here.gateway.server
        async with here.held_store():
            answered, connections = server.server_state.total_requests, len(server.server_state.connections)
            async with raw(here.gateway) as client:
                body = b'{"model": "m", "input": "x", "background": true}'
                client.write(request(target="/v1/responses", body=body))
                await until(lambda: bool(here.running), "it is accepted")
            await until(lambda: not here.running, "it is over")
            await until(lambda: len(server.server_state.connections) == connections, "its client has left")
        stored = await here.store.submit_job(lambda database: database.count_stored())
        assert stored.responses == 1
        await settled()
        assert server.server_state.total_requests == answered
        assert here.engine.requests == []
    assert "Exception" not in caplog.text


async def test_what_a_client_sends_behind_it_waits_for_its_turn() -> None:
    async with site() as here:
        body = b'{"model": "m", "input": "x", "background": true}'
        async with here.held_store(), raw(here.gateway) as client:
            client.write(request(target="/v1/responses", body=body) + request("GET", "/health") + b"garbage\r\n\r\n")
            await until(lambda: bool(here.running), "it is accepted")
            await settled()
            assert client.answers == []
            here.let_go()
            answers = await client.to_the_end()
        assert [answer.status for answer in answers] == [200, 200, 400]
        assert json.loads(answers[0].body)["status"] == "queued"


async def test_every_state_suits_the_published_schemas(loop_clock: LoopClock) -> None:
    async with site(m=ONE_SLOT, request_timeout_s=30) as here:
        url = here.gateway.url + "/v1/responses"

        async def read(response_id: str, method: str = "GET", more: str = "") -> Any:
            async with here.gateway.client.request(method, f"{url}/{response_id}{more}") as answer:
                assert answer.content_type == "application/json"
                return await answer.json()

        asked = {"model": "m", "input": "x", "background": True, "metadata": {"a": "b"}}
        ids, seen = [], {}
        for fault in ("hold", None):
            async with here.gateway.client.post(url, json={**asked, **({"fault": fault} if fault else {})}) as answer:
                made = await answer.json()
                ids.append(made["id"])
                seen["queued"] = made
        running, waiting = ids
        await until(lambda: here.engine.running == 1, "it runs")
        for response_id in (running, waiting):
            found = await read(response_id)
            seen[found["status"]] = found
        cancelled = await read(waiting, "POST", "/cancel")
        seen[cancelled["status"]] = cancelled
        await loop_clock.skip(35)
        await here.over(running)
        failed = await read(running)
        seen[failed["status"]] = failed
        assert set(seen) == {"queued", "in_progress", "cancelled", "failed"}
        for response in seen.values():
            check_response(response)
            assert response["metadata"] == {"a": "b"}
        made = await here.make(previous_response_id=(await here.make()).id)
        for item in (await read(made.id, more="/input_items"))["data"]:
            ResponseItemList.model_validate_json(
                json.dumps({"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False}),
                strict=True,
            )


async def test_the_gateways_end_waits_for_it_and_then_ends_it_with_a_word(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        slow = route("slow", [engine.url])
        async with site(slow, state=tmp_path, shutdown_grace_s=60) as here:
            made = await here.make(model="slow", background=True, fault="hold")
            await until(lambda: engine.running == 1, "it runs")
            asyncio.get_running_loop().call_later(0.5, engine.release.set)
        async with site(slow, state=tmp_path, shutdown_grace_s=0) as here:
            assert (await here.client.responses.retrieve(made.id)).output_text.strip() == TEXT
            engine.release.clear()
            late = await here.make(model="slow", background=True, fault="hold")
            await until(lambda: engine.running == 1, "it runs")
        await until(lambda: engine.cancelled == 1, "the engine stops")
        async with site(state=tmp_path) as here:
            found = await here.client.responses.retrieve(late.id)
        assert found.error is not None
        assert (found.status, found.error.to_dict()["reason"]) == ("failed", "gateway_stopping")
        assert "before the answer was complete" in found.error.message


async def test_the_sync_client_and_its_polling() -> None:
    async with site() as here:

        def use() -> list[str | None]:
            with openai.OpenAI(base_url=here.gateway.url + "/v1", api_key="none", max_retries=0) as client:
                made = client.responses.create(model="m", input="x", background=True)
                seen = [made.status]
                while made.status in ("queued", "in_progress"):
                    made = client.responses.retrieve(made.id)
                seen.append(made.status)
                items = [item.id for item in client.responses.input_items.list(made.id)]
                client.responses.delete(made.id)
                return [*seen, str(len(items))]

        assert await asyncio.to_thread(use) == ["queued", "completed", "1"]
