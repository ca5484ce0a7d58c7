"""Answers that were cut off, in conversations: kept as they are, and continued by engines that can."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, until
from tests.fakes.mock_engine import WORDS
from tests.integration.gateway.test_responses_process import process_site
from tests.support.conversation_rest import Rest, message, rest, text_of
from tests.support.llama_servers import needed
from tests.support.response_state import Site, site
from tests.support.responses_gateway import engines as real_engines
from tests.support.responses_gateway import responses_gateway
from tests.support.resumed_streams import open_stream, read_again, stop
from tests.support.worker_process import Worker
from worker.clockwork import SENTENCE

BEGUN = "The quick brown"
RESPONSES = "/v1/responses"


def cut(text: str, **fields: Any) -> dict[str, Any]:
    """An answer that was cut off, as a page adds it."""
    return message(text, "assistant", status="incomplete", **fields)


def deltas(stream: bytes) -> str:
    """What the events of a response have said so far. The last event may be cut."""
    events = [each.partition("data: ")[2] for each in stream.decode(errors="ignore").split("\n\n")[:-1]]
    told = [json.loads(event) for event in events if event.startswith("{")]
    return "".join(each["delta"] for each in told if each["type"] == "response.output_text.delta")


async def texts(asking: Rest, conversation_id: str) -> list[tuple[str, str]]:
    """Status and text of the active branch's messages, the oldest first."""
    listed = await asking.get(f"/{conversation_id}/items?order=asc")
    return [(item["status"], text_of(item)) for item in listed["data"]]


async def until_said(answer: aiohttp.ClientResponse, text: str) -> bytes:
    """What a client has of a stream as soon as it was told this text."""
    sent = b""
    while text not in deltas(sent):
        sent += await answer.content.readany()
    return sent


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    needed("binary")
    with real_engines("binary", tmp_path_factory.mktemp("engines")) as made:
        yield made


@pytest.fixture
async def gateway(real: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with responses_gateway(real) as here:
        yield here


@pytest.mark.engines
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("plain", SENTENCE.removeprefix(BEGUN)),
        # Our worker does not go on: it answers anew.
        ("worker", SENTENCE),
    ],
)
async def test_a_cut_answer_is_continued(gateway: GatewayHarness, model: str, text: str, is_stream: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        asking = rest(Site(gateway, None, client))  # type: ignore[arg-type]
        made = await asking.post("", items=[message("Hi"), cut(BEGUN)])
        asked: Any = {"model": model, "input": [], "conversation": made["id"], "temperature": 0}
        if is_stream:
            async with client.responses.stream(**asked) as stream:
                response = await stream.get_final_response()
        else:
            response = await client.responses.create(**asked)
        assert response.output_text == text
        items = (await asking.get(f"/{made['id']}/items?order=asc"))["data"]
        assert [(each["status"], text_of(each)) for each in items[1:]] == [("incomplete", BEGUN), ("completed", text)]
        assert items[2]["parent_id"] == items[1]["id"]


@pytest.mark.engines
async def test_an_answer_that_its_token_limit_cut_is_continued(gateway: GatewayHarness) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        asking = rest(Site(gateway, None, client))  # type: ignore[arg-type]
        made = await asking.post("")
        asked: Any = {"model": "plain", "conversation": made["id"], "temperature": 0}
        first = await client.responses.create(**asked, input="Hi", max_output_tokens=3)
        assert (first.status, first.output_text) == ("incomplete", BEGUN)
        second = await client.responses.create(**asked, input=[])
        assert first.output_text + second.output_text == SENTENCE
        assert (await texts(asking, made["id"]))[1:] == [
            ("incomplete", BEGUN),
            ("completed", SENTENCE.removeprefix(BEGUN)),
        ]


async def test_both_parts_are_one_message_for_the_next_answer() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post(
            "", items=[message("Hi"), cut("one tw"), message("o three", "assistant"), message("four", "assistant")]
        )
        await here.make("And?", conversation=made["id"])
        assert here.messages() == [("user", "Hi"), ("assistant", "one two three\n\nfour"), ("user", "And?")]


async def test_of_a_stream_that_was_stopped_the_page_adds_what_it_has() -> None:
    async with site() as here:
        asking = rest(here)
        made = await asking.post("", items=[message("Hi", id="q")])
        fields = {"conversation": made["id"], "fault": "pause_until_release", "after": 3, "input": []}
        async with open_stream(here.gateway, path=RESPONSES, **fields) as answer:
            sent = await until_said(answer, WORDS[2])
            assert await stop(here.gateway) == 204
            sent += await answer.content.read()
        partial = deltas(sent)
        assert partial.split() == WORDS[:3]
        # Neither the question nor the answer went, and nothing is locked.
        assert await texts(asking, made["id"]) == [("completed", "Hi")]
        added = await asking.post(f"/{made['id']}/items", items=[cut(partial)], parent_id="q")
        assert added["data"][0]["status"] == "incomplete"
        assert await texts(asking, made["id"]) == [("completed", "Hi"), ("incomplete", partial)]
        await here.make([], conversation=made["id"])
        assert here.messages() == [("user", "Hi"), ("assistant", partial)]
        # The same text is in the response, for a page that lost it.
        response_id = json.loads(sent.decode().partition("data: ")[2].partition("\n")[0])["response"]["id"]
        kept = await here.client.responses.retrieve(response_id)
        assert (kept.status, kept.output_text) == ("cancelled", partial)


async def test_of_a_gateway_that_died_the_stream_has_what_the_page_adds(tmp_path: Path) -> None:
    async with engines(1) as (engine,):
        async with process_site(tmp_path, engine) as (process, here):
            made = await rest(here).post("", items=[message("Hi", id="q")])
            fields = {"conversation": made["id"], "fault": "pause_until_release", "after": 3, "input": []}
            async with open_stream(here.gateway, path=RESPONSES, **fields) as answer:
                sent = await until_said(answer, WORDS[2])
                process.kill()
                await process.wait()
        async with process_site(tmp_path, engine) as (_, here):
            await here.gateway.publish(route("m", [engine.url]))
            asking = rest(here)
            read = await read_again(here.gateway)
            assert (read.body[: len(sent)], read.state) == (sent, "cut")
            partial = deltas(read.body)
            assert partial.split() == WORDS[:3]
            assert (await asking.get(f"/{made['id']}"))["running_response_id"] is None
            await asking.post(f"/{made['id']}/items", items=[cut(partial)])
            await until(lambda: engine.running == 0, "the engine noticed")
            await here.make([], conversation=made["id"])
            assert here.messages() == [("user", "Hi"), ("assistant", partial)]
            assert [text for _, text in await texts(asking, made["id"])][:2] == ["Hi", partial]
