"""Conversations and the process that stores them: killed in the middle of their turns, and started anew."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import openai

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import WORDS
from tests.integration.gateway.test_responses_process import process_site
from tests.support.response_state import Site, refusal

TEXT = " ".join(WORDS)


async def listed(here: Site, conversation_id: str) -> list[dict[str, Any]]:
    """Items of the active branch, the oldest first."""
    items = here.client.conversations.items.list(conversation_id, order="asc", limit=100)
    return [item.to_dict() async for item in items]


async def test_a_killed_gateway_has_each_turn_wholly_or_not_at_all(tmp_path: Path) -> None:
    told: list[str] = []

    async def talk(here: Site, conversation_id: str) -> None:
        with contextlib.suppress(openai.APIConnectionError):
            while True:
                told.append((await here.make(str(len(told)), conversation=conversation_id)).id)

    async with engines(2) as (engine, other):
        async with process_site(tmp_path, engine) as (process, here):
            await here.gateway.publish(route("m", [engine.url]), route("held", [other.url]))
            conversation, locked = [await here.client.conversations.create(metadata={"a": "b"}) for _ in range(2)]
            queued = await here.make("one", model="held", conversation=locked.id, background=True, fault="hold")
            await until(lambda: other.running == 1, "it runs")
            assert (await refusal(here.make("two", conversation=locked.id)))[1] == "conversation_locked"
            talking = asyncio.create_task(talk(here, conversation.id))
            await until(lambda: len(told) >= 10, "ten turns are told")
            process.kill()
            await process.wait()
            await talking
        async with process_site(tmp_path, engine) as (_, here):
            items = await listed(here, conversation.id)
            assert [item["role"] for item in items] == ["user", "assistant"] * (len(items) // 2)
            # All that the client was told the end of, and perhaps one turn more.
            assert len(told) <= len(items) // 2 <= len(told) + 1
            assert [item["content"][0]["text"] for item in items[::2]] == [str(n) for n in range(len(items) // 2)]
            for response_id, answer in zip(told, items[1::2], strict=False):
                assert (await here.client.responses.retrieve(response_id)).output[0].id == answer["id"]
            found = await here.client.conversations.retrieve(conversation.id)
            assert (found.created_at, found.metadata) == (conversation.created_at, {"a": "b"})
            shown = found.to_dict()
            assert (shown["item_count"], shown["active_item_id"]) == (len(items), items[-1]["id"])
            assert shown["running_response_id"] is None
            await here.make("on", conversation=conversation.id)
            assert len(here.messages()) == len(items) + 1
            # What was being made has failed, has added nothing, and locks nothing.
            assert (await here.client.responses.retrieve(queued.id)).status == "failed"
            assert await listed(here, locked.id) == []
            await here.make("two", conversation=locked.id)
            assert [item["content"][0]["text"] for item in await listed(here, locked.id)] == ["two", TEXT]
