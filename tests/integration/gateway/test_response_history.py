"""What a request continues: while its history loads, and what it costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import WORDS
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import key
from tests.support.response_state import refusal, settled, site

__all__ = ["loop_clock"]

TEXT = " ".join(WORDS)
FIRST = [("user", "one"), ("assistant", TEXT)]
NOT_FOUND = (404, "response_not_found", "response_id")
NO_PREVIOUS = (400, "previous_response_not_found", "previous_response_id")


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
            await until(lambda: here.store.waiting_count == 2, "it loads")
            leaving.cancel()
            server: Any = here.gateway.server
            exchanges = server._gateway.inference._services.exchanges
            await until(lambda: not exchanges, "it is over")
        await here.store.find_response("a", "x")
        await settled()
        assert len(here.engine.requests) == 1
        await here.make("three", previous_response_id=first.id)  # its place among the key's requests is free again


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_that_loads_for_too_long_ends_the_request(stream: bool, loop_clock: LoopClock) -> None:
    async with site(request_timeout_s=30, hold_headers_s=5, heartbeat_s=5) as here:
        first = await here.make()
        asked = {"model": "m", "input": "x", "previous_response_id": first.id, "stream": stream}
        async with here.held_store():
            asking = asyncio.create_task(here.gateway.post("/v1/responses", **asked).__aenter__())
            await until(lambda: here.store.waiting_count == 2, "it loads")
            await loop_clock.skip(35)
            answer = await asking
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

        async def create() -> Any:
            return await here.client.responses.create(model="alias", input="two", previous_response_id=first.id)

        async with here.held_store():
            moved = asyncio.create_task(create())
            await until(lambda: here.store.waiting_count == 2, "it loads")
            await here.gateway.publish(route("m", [other.url]), route("n", [here.engine.url], aliases=("alias",)))
        await moved
        assert len(other.requests) == 1, "the model that was meant, at its new place"
        async with here.held_store():
            lost = asyncio.create_task(refusal(create()))
            await until(lambda: here.store.waiting_count == 2, "it loads")
            await here.gateway.publish()
        assert await lost == (404, "unknown_model", "model")


async def test_a_key_may_be_revoked_while_the_history_loads() -> None:
    async with site(keys=(key("a"),)) as here:
        first = await here.make()
        async with here.held_store():
            asking = asyncio.create_task(refusal(here.make("two", previous_response_id=first.id)))
            await until(lambda: here.store.waiting_count == 2, "it loads")
            await here.gateway.publish(route("m", [here.engine.url]), keys=(key("b"),))
        assert (await asking)[:2] == (401, "invalid_api_key")
        assert len(here.engine.requests) == 1


async def test_a_request_without_history_waits_for_no_disk() -> None:
    async with site() as here:
        async with here.held_store():
            made = await here.make(store=False)
            assert made.output_text.strip() == TEXT
            kept = asyncio.create_task(here.make())
            await until(lambda: len(here.engine.requests) == 2, "its engine is asked")
            assert not kept.done()
        assert await here.client.responses.retrieve((await kept).id) == await kept


async def test_a_rate_limit_is_looked_at_before_the_disk() -> None:
    async with site(keys=(key("a", requests_per_minute=1),)) as here:
        made = await here.make()
        async with here.held_store():
            asking = here.make("two", previous_response_id=made.id)
            assert (await refusal(asking))[:2] == (429, "rate_limit_exceeded")
            assert here.store.waiting_count == 1


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
