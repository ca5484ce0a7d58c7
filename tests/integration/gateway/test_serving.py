"""The gateway's routes over a real socket: what passes, and what is refused before any engine, and in which words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from contract.admin import Capabilities
from contract.errors import ERROR_CODES, fill_steps
from contract.routing import ModelRoute
from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import WORDS, MockEngine
from tests.support.admin import error_of

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SEES = [{"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}]
TALKS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
TAKES_LITTLE = Capabilities(multi_turn=False, tools=False, structured_output=False, logprobs=False)
TAKES_ALL = Capabilities(modalities=("text", "image"), thinking_modes=("default", "enabled", "disabled"))
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
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


def says(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


async def test_blocking_answers_come_through_unchanged(gateway: GatewayHarness, engine: MockEngine) -> None:
    more: dict[str, Any] = {"temperature": 0.5, "unknown_field": {"model": "x"}}
    body = (await gateway.chat(**more)).success
    assert body["choices"][0]["message"]["content"] == " ".join(WORDS)
    assert engine.requests[0].body.items() >= more.items()


async def test_credentials_stay_here_and_the_replicas_own_token_is_sent() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"authorization": "Bearer client-secret", "x-api-key": "client-secret", "cookie": "client-secret=1"}
    async with gateway_harness() as gateway, engines(2) as (guarded, plain):
        await gateway.publish(route("guarded", [guarded.url], token="replica-token"), route("plain", [plain.url]))
        for model in ("guarded", "plain"):
            reply = await gateway.chat(model, headers=headers | {"traceparent": trace})
            assert reply.status == 200
        assert guarded.requests[0].headers["authorization"] == "Bearer replica-token"
        assert "authorization" not in plain.requests[0].headers
        for engine in (guarded, plain):
            seen = engine.requests[0].headers
            assert "client-secret" not in str(seen)
            assert (seen["content-type"], seen["accept-encoding"]) == ("application/json", "identity")
            assert seen["traceparent"] == trace
        assert plain.requests[0].headers["x-request-id"] == reply.headers["x-request-id"]


async def test_headers_of_the_engine_stay_there(gateway: GatewayHarness, engine: MockEngine) -> None:
    for stream in (False, True):
        reply = await gateway.chat(stream=stream)
        assert not {"set-cookie", "access-control-allow-origin", "server"} & {name.lower() for name in reply.headers}


async def test_every_answer_has_an_id_of_its_own(gateway: GatewayHarness, engine: MockEngine) -> None:
    seen = set()
    for path in ("/health", "/metrics", "/v1/models", "/v1/models/m", "/openapi.json", "/nowhere"):
        seen.add((await gateway.get(path)).headers["x-request-id"])
    seen.add((await gateway.chat()).headers["x-request-id"])
    seen.add((await gateway.chat(stream=True)).headers["x-request-id"])
    assert len(seen) == 8


async def test_an_alias_reaches_the_engine_by_the_name_it_knows(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("org/model:8b", [engine.url], aliases=("small", "default"), served_name="inner"))
    for name in ("small", "org/model:8b"):
        assert (await gateway.chat(name)).status == 200
    assert [request.body["model"] for request in engine.requests] == ["inner", "inner"]


async def test_a_remote_whose_base_url_holds_the_prefix(gateway: GatewayHarness, engine: MockEngine) -> None:
    table = route("m", [engine.url + "/openai/v1"])
    endpoint = table.endpoints[0].model_copy(update={"api_prefix": ""})
    await gateway.publish(table.model_copy(update={"endpoints": (endpoint,)}))
    assert (await gateway.chat()).status == 200
    assert engine.requests[0].path == "/openai/v1/chat/completions"


async def test_before_the_first_table_there_are_no_models_and_the_process_is_healthy() -> None:
    async with gateway_harness(with_table=False) as gateway:
        reply = await gateway.chat()
        assert error_of(reply).code == "controller_unavailable"
        assert reply.headers["retry-after"] == "5"
        assert error_of(await gateway.get("/v1/models")).code == "controller_unavailable"
        assert (await gateway.get("/health")).success["engines"] == []


UNKNOWN_ROUTES = (
    ("GET", "/v1/nothing"),
    ("POST", "/v1/nothing"),
    ("POST", "/v1/responses/nothing"),
    ("PUT", "/v1/responses/nothing"),
    ("GET", "/v1/responses/nothing/more"),
    ("POST", "/router/nothing"),
    ("DELETE", "/nothing"),
)


async def test_refusals_that_never_reach_an_engine() -> None:
    async with gateway_harness(max_body_mib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], apis=("/v1/embeddings",)))
        assert error_of(await gateway.chat("nobody")).code == "unknown_model"
        error = error_of(await gateway.chat("m"))
        assert error.code == "not_supported"
        assert "/v1/embeddings" in error.message
        error = error_of(await gateway.request("POST", "/v1/embeddings", data=b'{"model": "m",}'))
        assert error.code == "invalid_json"
        assert "line 1 column 15" in error.message
        reply = await gateway.get("/v1/embeddings")
        assert error_of(reply).code == "method_not_allowed"
        assert reply.headers["allow"] == "POST"
        # Some fit the path of a stored response, which says nothing of other methods.
        for method, path in UNKNOWN_ROUTES:
            assert error_of(await gateway.request(method, path)).code == "unknown_route", path
        assert engine.requests == []


async def test_a_large_body_and_a_large_answer_pass() -> None:
    async with gateway_harness(answer_buffer_mib=1) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        reply = await gateway.chat(image="x" * 3_000_000, fault="huge", bytes=5_000_000)
        assert (reply.status, len(reply.content)) == (200, 5_000_000)
        assert len(engine.requests[0].body["image"]) == 3_000_000


CONTROLLERS = {
    "openapi": "3.1.0",
    "info": {"title": "c", "version": "1"},
    "paths": {"/v1/admin/models": {"get": {"responses": {"200": {"description": "All."}}}}, "/internal/x": {}},
}


async def test_the_controllers_part_of_the_document_is_kept_while_it_is_away() -> None:
    async def paths() -> set[str]:
        return set((await gateway.get("/openapi.json")).success["paths"])

    async with gateway_harness() as gateway:
        own = await paths()
        gateway.controller.admin.document = CONTROLLERS
        whole = await paths()
        assert whole == own | {"/v1/admin/models"}
        gateway.controller.admin.document = {"paths": "broken"}
        assert await paths() == whole
        gateway.controller.admin.document = CONTROLLERS | {"paths": {"/v1/admin/plan": {}}}
        assert await paths() == own | {"/v1/admin/plan"}, "another version came"
        await gateway.controller.stop()
        assert await paths() == own | {"/v1/admin/plan"}


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_model_does_not_take_never_reaches_its_engine(
    fields: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], capabilities=TAKES_LITTLE))
        reply = await gateway.chat(stream=stream, **fields)
        error = error_of(reply)
        assert (error.status, error.code, error.param) == (400, code, param)
        assert reply.headers.get("x-should-retry") == ("false" if ERROR_CODES[code].retry is False else None)
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
        reply = await gateway.post(path, body)
        assert (reply.status, "cannot be made to call a tool" in reply.error["message"]) == (400, True)
        assert not any(report.demand for report in gateway.controller.reports), "it was asked for"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_cannot_fit_takes_no_slot(stream: bool) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], context_length=4096, longest_token=13))
        reply = await gateway.chat(stream=stream, messages=says("x" * 4_000_000))
        assert (reply.refusal, reply.error["param"]) == ((400, "context_length_exceeded"), "messages")
        assert (reply.headers["x-should-retry"], "x-queue-position" in reply.headers) == ("false", False)
        long = "x" * 60_000
        reply = await gateway.post("/v1/messages", model="m", max_tokens=5, stream=stream, messages=says(long))
        assert reply.error["message"] == f"prompt is too long: {-(-60_000 // 13)} tokens > 4096 maximum"
        reply = await gateway.post("/v1/responses", model="m", input=long, stream=stream)
        assert reply.status == (200 if stream else 400)
        assert '"code":"context_length_exceeded"' in reply.text.replace('": "', '":"')
        assert not engine.requests
        # It may be counted, and one that fits goes in.
        await gateway.post("/v1/chat/completions/input_tokens", model="m", messages=says(long))
        assert len(engine.requests) == 1
        await gateway.chat(messages=says("x" * 50_000))
        assert len(engine.requests) == 2


SAYS = {"input": "Hi"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
WRITES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
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
    (
        "/v1/messages",
        WRITES | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "structured_output_unsupported",
        "output_config.format",
    ),
    ("/v1/messages", WRITES | {"tools": [{"name": "f", "input_schema": SCHEMA}]}, "tools_unsupported", "tools"),
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
        assert (reply.refusal, reply.error["param"]) == ((400, code), param)
        assert not engine.requests


async def test_what_the_model_does_not_take_does_not_load_it() -> None:
    model = route("m", state=ModelState.UNLOADED, autoload=True, capabilities=TAKES_LITTLE)
    async with gateway_harness() as gateway:
        await gateway.publish(model)
        for fields, code, _ in REFUSED:
            assert (await gateway.chat(**fields)).code == code, fields
        await gateway.publish(model)
        assert not any(report.demand or report.queued for report in gateway.controller.reports), "it was asked for"


async def test_an_api_that_the_engine_does_not_offer_loads_nothing_either(gateway: GatewayHarness) -> None:
    only_vectors = ("/v1/embeddings",)
    await gateway.publish(route("m", state=ModelState.UNLOADED, autoload=True, apis=only_vectors))
    assert (await gateway.chat()).code == "not_supported"
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
async def test_what_the_model_takes_reaches_its_engine_as_it_came(fields: dict[str, Any]) -> None:
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
        call = asyncio.ensure_future(gateway.chat(messages=SEES))
        await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
        await gateway.publish(route("m", [engine.url], autoload=True, capabilities=TAKES_LITTLE))
        assert (await call).code == "modality_unsupported"
        assert not engine.requests


@pytest.mark.parametrize(
    ("model", "code", "status", "headers", "absent"),
    [
        (route("other"), "unknown_model", 404, {"x-should-retry": "false"}, {"retry-after"}),
        (route("m", state=ModelState.UNLOADED), "model_not_loaded", 503, {"x-should-retry": "false"}, {"retry-after"}),
        (route("m", state=ModelState.LOADING), "model_loading", 503, {"retry-after": "5"}, {"x-should-retry"}),
        (
            route("m", state=ModelState.LOADING, progress=0.4),
            "model_loading",
            503,
            {"retry-after": "5", "x-load-progress": "0.40"},
            {"x-should-retry"},
        ),
        (route("m", state=ModelState.UNLOADING), "model_unloading", 503, {"retry-after": "5"}, {"x-should-retry"}),
        (
            route("m", state=ModelState.FAILED, last_error="no such file"),
            "model_failed",
            503,
            {"x-should-retry": "false"},
            {"retry-after"},
        ),
    ],
)
async def test_every_state_that_refuses(
    model: ModelRoute, code: str, status: int, headers: dict[str, str], absent: set[str]
) -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(model)
        for stream in (False, True):
            reply = await gateway.chat(stream=stream)
            error = error_of(reply)
            assert (error.code, error.status, error.param) == (code, status, "model")
            shown = {name.lower(): value for name, value in reply.headers.items()}
            assert headers.items() <= shown.items()
            assert absent.isdisjoint(shown)
            assert error.next_steps == fill_steps(ERROR_CODES[code].next_steps, {"model": model.name}) != []
            assert ("(40 %)" in error.message) is (model.progress is not None)
            assert ("no such file" in error.message) is (model.last_error is not None)


async def test_a_wait_that_was_too_long_says_how_far_the_load_is() -> None:
    async with gateway_harness(autoload_timeout_s=0.2) as gateway:
        await gateway.publish(route("m", state=ModelState.LOADING, autoload=True, progress=0.25))
        reply = await gateway.chat()
        assert (reply.code, reply.headers["x-load-progress"]) == ("model_loading", "0.25")
