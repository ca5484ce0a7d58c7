"""Responses in the background on a real llama-server: they go on alone, and a cancellation frees the engine's slot."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import openai
import pytest

from tests.support.llama_slots import ENDLESS, LlamaSlots, endless_stack, slots_of
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.embedded]


@pytest.fixture(scope="module")
def stack() -> Iterator[RoundhouseStack]:
    with endless_stack() as stack:
        yield stack


async def test_a_cancellation_frees_the_engines_slot(stack: RoundhouseStack) -> None:
    limits = itertools.count(ENDLESS + 1)
    async with slots_of(stack, "chat") as slots, stack.sdk() as client:
        for cancels in (True, True, False):
            limit = next(limits)
            made = await client.responses.create(
                model="chat", input="Hi", background=True, max_output_tokens=limit, temperature=0
            )
            assert made.status == "queued"
            task = await slots.task_of(limit)
            assert (await client.responses.retrieve(made.id)).status == "in_progress"
            if cancels:
                assert (await client.responses.cancel(made.id)).status == "cancelled"
                assert (await client.responses.retrieve(made.id)).status == "cancelled"
            else:
                await client.responses.delete(made.id)
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(made.id)
            await slots.cancelled(task)
        await cancelled_stream(client, slots, next(limits))
        await slots.idle()


async def cancelled_stream(client: openai.AsyncOpenAI, slots: LlamaSlots, limit: int) -> None:
    """Cancel a stream that somebody reads."""
    stream = await client.responses.create(
        model="chat", input="Hi", stream=True, max_output_tokens=limit, temperature=0
    )
    task, response_id, told = None, "", ""
    async for event in stream:
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            told += event.delta
            if task is None:
                task = await slots.task_of(limit)
                await client.responses.cancel(response_id)
        last = event
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"
    assert last.response.output_text == told
    assert await client.responses.retrieve(response_id) == last.response
    assert task is not None
    await slots.cancelled(task)


async def test_a_conversation_goes_on_over_a_gateway_that_was_killed(stack: RoundhouseStack) -> None:
    async with stack.sdk() as client:
        first = await client.responses.create(model="chat", input="Hi", max_output_tokens=12, temperature=0)
        assert first.status == "incomplete"
        stream = await client.responses.create(
            model="chat", input="Go on", previous_response_id=first.id, stream=True, background=True,
            max_output_tokens=400, temperature=0,
        )  # fmt: skip
        response_id = ""
        async for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                break
        await stream.close()  # it goes on

        async def over() -> bool:
            return (await client.responses.retrieve(response_id)).status == "incomplete"

        await until("it is over", over)
        second = await client.responses.retrieve(response_id)
        assert second.usage is not None
        assert second.usage.output_tokens == 400
        running = await client.responses.create(model="chat", input="Hi", background=True, max_output_tokens=ENDLESS)
        stack.kill("gateway")
        stack.start("gateway")
        await stack.gateway_connected()
        assert await client.responses.retrieve(second.id) == second
        assert (await client.responses.retrieve(running.id)).status == "failed"
        third = await client.responses.create(
            model="chat", input="And", previous_response_id=second.id, max_output_tokens=5, temperature=0
        )
        assert third.usage is not None
        assert third.usage.input_tokens > second.usage.input_tokens + 400
        items = [item.to_dict()["type"] async for item in client.responses.input_items.list(third.id)]
        assert items == ["message"] * 5
