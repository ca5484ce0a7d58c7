"""What a model does not take, and what its state does not allow: refused by the gateway, before any engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from controller.schema.admin import Capabilities
from controller.schema.errors import ERROR_CODES, ErrorBody, ErrorEnvelope
from controller.schema.routing import ModelRoute
from controller.schema.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SEES = [{"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}]
TALKS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
TAKES_LITTLE = Capabilities(multi_turn=False, tools=False, structured_output=False, logprobs=False)
TAKES_ALL = Capabilities(modalities=("text", "image"), thinking_modes=("default", "enabled", "disabled"))


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


async def refusal(gateway: GatewayHarness, **fields: Any) -> tuple[int, dict[str, str], ErrorBody]:
    """Status, headers and error of a refused chat."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields
    async with gateway.post("/v1/chat/completions", body) as answer:
        return answer.status, dict(answer.headers), ErrorEnvelope.model_validate(await answer.json()).error


REFUSED = [
    ({"thinking": "enabled"}, "thinking_unsupported", "thinking"),
    ({"thinking": "sometimes"}, "invalid_request", "thinking"),
    ({"messages": SEES}, "modality_unsupported", "messages[0].content[1]"),
    ({"messages": TALKS}, "multi_turn_unsupported", "messages[2]"),
    ({"tools": [TOOL]}, "tools_unsupported", "tools"),
    ({"response_format": {"type": "json_object"}}, "structured_output_unsupported", "response_format"),
    ({"logprobs": True}, "logprobs_unsupported", "logprobs"),
    ({"top_logprobs": 2}, "logprobs_unsupported", "top_logprobs"),
    ({"prompt_logprobs": 1}, "logprobs_unsupported", "prompt_logprobs"),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_model_does_not_take_never_reaches_its_engine(
    fields: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=TAKES_LITTLE))
        status, headers, error = await refusal(gateway, stream=stream, **fields)
        assert (status, error.code, error.param) == (400, code, param)
        assert headers.get("x-should-retry") == ("false" if ERROR_CODES[code].retry is False else None)
        assert error.next_steps
        assert not engine.requests


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": SEES, "tools": [TOOL], "tool_choice": "required"}),
        (
            "/v1/chat/completions",
            {"messages": SEES, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            "/v1/messages",
            {"max_tokens": 5, "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        ),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"}),
    ],
)
async def test_a_call_that_the_engine_cannot_be_made_to_make_loads_nothing(path: str, fields: dict[str, Any]) -> None:
    cannot = Capabilities(modalities=("text", "image"), forced_tools=False)
    messages = {} if "input" in fields else {"messages": [{"role": "user", "content": "Hi"}]}
    async with gateway_harness() as gateway:
        await gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True, capabilities=cannot))
        body = {"model": "m"} | messages | fields
        async with gateway.post(path, body) as answer:
            assert answer.status == 400
            assert "cannot be made to call a tool" in (await answer.json())["error"]["message"]
        assert not any(report.demand for report in gateway.controller.reports), "it was asked for"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_cannot_fit_takes_no_slot(stream: bool) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], context_length=4096, longest_token=13))
        status, headers, error = await refusal(gateway, stream=stream, messages=says("x" * 4_000_000))
        assert (status, error.code, error.param) == (400, "context_length_exceeded", "messages")
        assert (headers["x-should-retry"], "x-queue-position" in headers) == ("false", False)
        asked = {"model": "m", "max_tokens": 5, "stream": stream, "messages": says("x" * 60_000)}
        async with gateway.post("/v1/messages", asked) as answer:
            assert (answer.status, (await answer.json())["error"]["message"]) == (
                400,
                f"prompt is too long: {-(-60_000 // 13)} tokens > 4096 maximum",
            )
        body = {"model": "m", "input": "x" * 60_000, "stream": stream}
        async with gateway.post("/v1/responses", body) as answer:
            assert answer.status == (200 if stream else 400)
            assert b'"code":"context_length_exceeded"' in (await answer.read()).replace(b'": "', b'":"')
        assert not engine.requests
        # It may be counted, and one that fits goes in.
        count = {"model": "m", "messages": says("x" * 60_000)}
        async with gateway.post("/v1/chat/completions/input_tokens", count):
            assert len(engine.requests) == 1
        async with gateway.post("/v1/chat/completions", count | {"messages": says("x" * 50_000)}):
            assert len(engine.requests) == 2


def says(text: str) -> list[dict[str, Any]]:
    """Messages."""
    return [{"role": "user", "content": text}]


SAYS = {"input": "Hi"}
WRITES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
IN_OTHER_FAMILIES: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/responses", SAYS | {"thinking": "enabled"}, "thinking_unsupported", "thinking"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}]},
        "modality_unsupported",
        "input[0].content[0]",
    ),
    ("/v1/responses", {"input": TALKS}, "multi_turn_unsupported", "input[2]"),
    ("/v1/responses", SAYS | {"tools": [{"type": "function", **TOOL["function"]}]}, "tools_unsupported", "tools"),  # type: ignore[dict-item]
    (
        "/v1/responses",
        SAYS | {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        "structured_output_unsupported",
        "text.format",
    ),
    ("/v1/messages", WRITES | {"thinking": "enabled"}, "thinking_unsupported", "thinking"),
    (
        "/v1/messages",
        WRITES | {"messages": [{"role": "user", "content": [PICTURE]}]},
        "modality_unsupported",
        "messages[0].content[0]",
    ),
    ("/v1/messages", WRITES | {"messages": TALKS}, "multi_turn_unsupported", "messages[2]"),
    ("/v1/messages", WRITES | {"tools": [{"name": "f", "input_schema": SCHEMA}]}, "tools_unsupported", "tools"),
    (
        "/v1/messages",
        WRITES | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "structured_output_unsupported",
        "output_config.format",
    ),
    ("/v1/completions", {"prompt": "Hi", "grammar": "root ::= [0-9]"}, "structured_output_unsupported", "grammar"),
    ("/v1/completions", {"prompt": "Hi", "logprobs": 0}, "logprobs_unsupported", "logprobs"),
    ("/v1/responses", SAYS | {"top_logprobs": 2}, "logprobs_unsupported", "top_logprobs"),
    ("/v1/responses", SAYS | {"include": ["message.output_text.logprobs"]}, "logprobs_unsupported", "include"),
]


@pytest.mark.parametrize(("path", "fields", "code", "param"), IN_OTHER_FAMILIES)
@pytest.mark.parametrize("apis", [(), ("/v1/chat/completions", "/v1/completions")], ids=["spoken", "over chat"])
async def test_the_rules_hold_in_every_family(
    path: str, fields: dict[str, Any], code: str, param: str, apis: tuple[str, ...]
) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=TAKES_LITTLE, apis=apis))
        reply = await gateway.post(path, model="m", **fields)
        assert reply.status == 400
        assert (reply.code, reply.error["param"]) == (code, param)
        assert not engine.requests


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
async def test_nor_does_it_load_the_model(fields: dict[str, Any], code: str, param: str) -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True, capabilities=TAKES_LITTLE))
        assert (await refusal(gateway, **fields))[2].code == code
        await gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True, capabilities=TAKES_LITTLE))
        assert not any(report.demand or report.queued for report in gateway.controller.reports), "it was asked for"


async def test_an_api_that_the_engine_does_not_offer_loads_nothing_either() -> None:
    async with gateway_harness() as gateway:
        only_vectors = ("/v1/embeddings",)
        await gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True, apis=only_vectors))
        assert (await refusal(gateway))[2].code == "not_supported"
        assert not any(report.demand for report in gateway.controller.reports)


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled"}},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},
        {"messages": SEES},
        {"messages": TALKS},
    ],
)
async def test_what_it_takes_reaches_the_engine_as_it_came(fields: dict[str, Any]) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=TAKES_ALL))
        raw = json.dumps({"model": "m", "messages": []} | fields).encode()
        assert (await gateway.request("POST", "/v1/chat/completions", data=raw)).status == 200
        assert engine.requests[0].raw == raw


@pytest.mark.parametrize(
    ("thinking", "told"), [("default", {}), ("disabled", {"chat_template_kwargs": {"enable_thinking": False}})]
)
async def test_a_word_about_thinking_reaches_the_engine_in_its_own_words(thinking: str, told: dict[str, Any]) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        made = route("m", [engine.url], capabilities=TAKES_ALL)
        await gateway.publish(made.model_copy(update={"thinking_control": "chat_template_kwargs"}))
        assert (await gateway.post("/v1/chat/completions", model="m", messages=[], thinking=thinking)).status == 200
        assert json.loads(engine.requests[0].raw) == {"model": "m", "messages": [], **told}


async def test_a_request_that_waited_is_held_to_what_the_model_takes_by_then() -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", state=ModelState.LOADING, autoload=True, capabilities=TAKES_ALL))
        call = asyncio.create_task(refusal(gateway, messages=SEES))
        await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
        await gateway.publish(route("m", [engine.url], autoload=True, capabilities=TAKES_LITTLE))
        assert (await call)[2].code == "modality_unsupported"
        assert not engine.requests


def in_state(state: ModelState, **fields: Any) -> ModelRoute:
    return route("m", state=state, **fields)


@pytest.mark.parametrize(
    ("model", "code", "status", "headers", "absent"),
    [
        (route("other"), "unknown_model", 404, {"x-should-retry": "false"}, {"retry-after"}),
        (in_state(ModelState.UNLOADED), "model_not_loaded", 503, {"x-should-retry": "false"}, {"retry-after"}),
        (in_state(ModelState.LOADING), "model_loading", 503, {"retry-after": "5"}, {"x-should-retry"}),
        (
            in_state(ModelState.LOADING, progress=0.4),
            "model_loading",
            503,
            {"retry-after": "5", "x-load-progress": "0.40"},
            {"x-should-retry"},
        ),
        (in_state(ModelState.UNLOADING), "model_unloading", 503, {"retry-after": "5"}, {"x-should-retry"}),
        (in_state(ModelState.FAILED), "model_failed", 503, {"x-should-retry": "false"}, {"retry-after"}),
    ],
)
async def test_every_state_that_refuses(
    model: ModelRoute, code: str, status: int, headers: dict[str, str], absent: set[str]
) -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(model)
        answered, got, error = await refusal(gateway)
        assert (answered, error.code, error.status, error.param) == (status, code, status, "model")
        lower = {name.lower(): value for name, value in got.items()}
        assert headers.items() <= lower.items()
        assert absent.isdisjoint(lower)
        assert error.next_steps == list(ERROR_CODES[code].next_steps) != []
        assert ("(40 %)" in error.message) is (model.progress is not None)


async def test_a_wait_that_was_too_long_says_how_far_the_load_is() -> None:
    async with gateway_harness(autoload_timeout_s=0.2) as gateway:
        await gateway.publish(in_state(ModelState.LOADING, autoload=True, progress=0.25))
        _, headers, error = await refusal(gateway)
        assert (error.code, headers["x-load-progress"]) == ("model_loading", "0.25")
