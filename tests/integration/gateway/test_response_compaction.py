"""`POST /v1/responses/compact`: what a conversation becomes, and how it goes on from there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import openresponses_types.types as open_responses

from gateway.protocols.responses.compaction import SUMMARY_REQUEST
from gateway.protocols.responses.items import INTRODUCTION
from tests.fakes.mock_engine import PROMPT_TOKENS, WORDS
from tests.support.gateway_rest import nothing_left
from tests.support.response_state import Site, refusal, site
from tests.support.responses import Fields, as_json
from tests.support.wait import until

TEXT = " ".join(WORDS)
CALLED: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?"},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
    {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
]


async def compacted(here: Site, **fields: Any) -> Fields:
    """The compaction as it is told. The SDK's own type takes it, too, but knows no messages of the user's."""
    answer = await here.client.responses.with_raw_response.compact(model="m", **fields)
    assert answer.parse().object == "response.compaction"
    told: Fields = json.loads(answer.text)
    open_responses.CompactResource.model_validate_json(as_json(told), strict=True)
    return told


def kinds(told: Fields) -> list[tuple[str, str | None]]:
    """Types and roles of its items."""
    return [(item["type"], item.get("role")) for item in told["output"]]


async def test_the_users_messages_stay_and_a_summary_takes_the_place_of_the_rest() -> None:
    async with site() as here:
        made = await compacted(here, input=CALLED, instructions="You are a robot.")
        assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (PROMPT_TOKENS, len(WORDS))
        assert kinds(made) == [("message", "developer"), ("message", "user"), ("compaction", None)]
        sent = here.engine.requests[-1].body["messages"]
        assert [message["role"] for message in sent][-2:] == ["tool", "user"]
        assert sent[-1]["content"] == SUMMARY_REQUEST
        assert "tools" not in here.engine.requests[-1].body

        output = made["output"]
        await here.make([*output, {"role": "user", "content": "Go on."}])
        assert here.messages()[-3:] == [
            ("user", "What is the weather?"),
            ("user", INTRODUCTION + TEXT),
            ("user", "Go on."),
        ]
        again = await compacted(here, input=output)
        assert kinds(again) == kinds(made)
        assert here.messages()[-1] == ("user", f"{INTRODUCTION}{TEXT}\n{SUMMARY_REQUEST}")
        await nothing_left(here.gateway)


async def test_a_stored_conversation_is_compacted_and_goes_on() -> None:
    async with site() as here:
        first = await here.make("one")
        made = await compacted(here, previous_response_id=first.id)
        assert kinds(made) == [("message", "user"), ("compaction", None)]
        assert [role for role, _ in here.messages()] == ["user", "assistant", "user"]
        output: list[Any] = made["output"]
        second = await here.make([*output, {"role": "user", "content": "two"}])
        await here.make("three", previous_response_id=second.id)
        assert [role for role, _ in here.messages()] == ["user", "user", "user", "assistant", "user"]
        assert await refusal(here.make("x", previous_response_id=made["id"])) == (
            400,
            "previous_response_not_found",
            "previous_response_id",
        )


async def test_what_cannot_be_compacted() -> None:
    async with site() as here:
        ask = here.client.responses.compact
        assert await refusal(ask(model="m")) == (400, "invalid_request", "input")
        assert (await refusal(ask(model="nobody", input="x")))[:2] == (404, "unknown_model")
        assert (await refusal(ask(model=openai.omit, input="x")))[:2] == (400, "invalid_request")  # type: ignore[arg-type]
        streamed = ask(model="m", input="x", extra_body={"stream": True})
        assert await refusal(streamed) == (400, "invalid_request", "stream")
        failed = ask(model="m", input="x", extra_body={"fault": "error_json"})
        assert (await refusal(failed))[:2] == (500, "engine_error")
        foreign: Any = [{"type": "compaction", "encrypted_content": "gAAAAABpM0Yj"}, {"role": "user", "content": "x"}]
        assert await refusal(here.make(foreign)) == (400, "invalid_request", "input[0].encrypted_content")
        here.engine.words = [""]
        here.engine.answers.clear()
        assert (await refusal(ask(model="m", input="x")))[:2] == (502, "engine_error")
        await nothing_left(here.gateway)


async def test_the_engine_stops_when_the_client_leaves() -> None:
    async with site(m={"notices_leaving": False}) as here:
        leaving = asyncio.create_task(compacted(here, input="x", extra_body={"fault": "hold"}))
        await until("it runs", lambda: here.engine.running)
        assert here.engine.requests[-1].body["stream"] is True
        leaving.cancel()
        await until("it is over", lambda: not here.engine.running)
        await compacted(here, input="x")
        await nothing_left(here.gateway)
