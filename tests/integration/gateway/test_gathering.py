"""Blocking calls of an engine that does not notice who leaves: asked for a stream where an answer may take long."""

from __future__ import annotations

from typing import Any

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness


async def test_only_answers_that_may_take_long_are_gathered() -> None:
    async with gateway_harness(gather_after_s=60) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]).model_copy(update={"notices_leaving": False}))

        async def is_gathered(**fields: Any) -> bool:
            assert (await gateway.chat(**fields)).success["choices"][0]["message"]["content"]
            return engine.requests[-1].body.get("stream") is True

        assert await is_gathered(), "nothing is known of the model's answers yet"
        assert not await is_gathered(), "an answer takes milliseconds: a stream would cost more than it saves"
        assert not await is_gathered(max_tokens=100_000), "as long as the others, as far as anybody can tell"
        assert await is_gathered(ignore_eos=True), "it ends with the context"
        assert await is_gathered(metadata={"notes": "word " * 4000}), "its prompt may take a time of its own"
        async with gateway.chat(stream=True) as stream:
            assert stream.status == 200
            await stream.read()
        assert not await is_gathered()
