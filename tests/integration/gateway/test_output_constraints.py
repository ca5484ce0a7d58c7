"""What an answer is held to in words of llama.cpp's and vLLM's, on real engines: followed, or refused with a code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from contract.routing import ModelRoute
from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support import worker_engines
from tests.support.scripted_models import USER
from tests.support.worker_engines import Fleet, fleet_in
from tests.support.worker_process import Worker
from worker.clockwork import COMPLETION_TOKENS, SENTENCE

pytestmark = pytest.mark.engines

Fields = dict[str, Any]

BACKENDS = (pytest.param("llama_server", marks=pytest.mark.embedded), "llama_cpp")
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ASKED: dict[str, Fields] = {
    CHAT: {"messages": USER, "temperature": 0, "max_tokens": 40},
    COMPLETIONS: {"prompt": "<|assistant|>", "temperature": 0, "max_tokens": 40},
    RESPONSES: {"input": "hello", "temperature": 0, "max_output_tokens": 40, "store": False},
}
CITY: Fields = {"const": "Oslo"}
FORMAT: Fields = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
OSLO = '"Oslo"'
FOLLOWED: list[tuple[str, Fields, str]] = [
    (path, fields, answer)
    for path in ASKED
    for fields, answer in (
        ({"grammar": 'root ::= "yes"'}, "yes"),
        ({"json_schema": CITY}, OSLO),
        ({"guided_json": CITY}, OSLO),
        ({"guided_choice": ['say "no"']}, 'say "no"'),
        ({"guided_grammar": 'root ::= "yes"'}, "yes"),
        ({"structured_outputs": {"json": json.dumps(CITY)}}, OSLO),
        ({"structured_outputs": {"choice": ["maybe"]}}, "maybe"),
    )
] + [(CHAT, {"response_format": FORMAT}, OSLO), (COMPLETIONS, {"response_format": FORMAT}, OSLO)]
UNSUPPORTED = "structured_output_unsupported"
REFUSED: list[tuple[str, Fields, str, str]] = [
    *((path, {"guided_regex": "[0-9]+"}, UNSUPPORTED, "guided_regex") for path in ASKED),
    *((path, {"structured_outputs": {"regex": "a"}}, UNSUPPORTED, "structured_outputs") for path in ASKED),
    *((path, {"grammar": "root ::= broken"}, "", "") for path in ASKED),
    (COMPLETIONS, {"echo": True}, "invalid_request", "echo"),
    (COMPLETIONS, {"suffix": "the end"}, "invalid_request", "suffix"),
    (COMPLETIONS, {"best_of": 2}, "invalid_request", "best_of"),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def route_of(backend: str, engine: Worker) -> ModelRoute:
    definition = ENGINES[backend].definition.model_validate({"backend": backend, "model_path": "m.gguf"})
    made = route(
        "m",
        [f"http://127.0.0.1:{engine.port}"],
        token=engine.token,
        served_name="demo",
        apis=ENGINES[backend].list_apis(definition),
        capabilities=ENGINES[backend].derive_capabilities(definition),
    )
    return made.model_copy(update={"backend": backend, "notices_leaving": ENGINES[backend].notices_leaving})


@pytest.fixture(params=BACKENDS)
async def gateway(fleet: Fleet, request: pytest.FixtureRequest) -> AsyncIterator[GatewayHarness]:
    engine = fleet.plain(worker_engines.ENGINES[request.param])
    async with gateway_harness() as gateway:
        await gateway.publish(route_of(request.param, engine))
        yield gateway


def text_of(path: str, answer: Any) -> str:
    if path == RESPONSES:
        return "".join(part["text"] for item in answer["output"] for part in item["content"])
    choice = answer["choices"][0]
    return str(choice["message"]["content"] if path == CHAT else choice["text"])


async def test_an_output_constraint_is_followed(gateway: GatewayHarness) -> None:
    for path, fields, expected in FOLLOWED:
        reply = await gateway.post(path, model="m", **ASKED[path], **fields)
        assert text_of(path, reply.success) == expected, (path, fields)


async def test_it_is_followed_in_a_stream(gateway: GatewayHarness) -> None:
    events = (await gateway.chat(stream=True, max_tokens=40, guided_choice=["yes"])).text.split("\n\n")
    parts = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"]) == "yes"


async def test_what_cannot_be_had_is_refused(gateway: GatewayHarness) -> None:
    for path, fields, code, param in REFUSED:
        for stream in (False, True):
            reply = await gateway.post(path, model="m", stream=stream, **ASKED[path], **fields)
            assert reply.status == 400, (path, fields, reply.error)
            assert not code or (reply.code, reply.error["param"]) == (code, param), (path, fields, reply.error)


async def test_an_answer_goes_on_past_its_end(gateway: GatewayHarness) -> None:
    for path in (CHAT, COMPLETIONS):
        told = (await gateway.post(path, model="m", ignore_eos=True, **ASKED[path])).body
        assert text_of(path, told).startswith(SENTENCE)
        assert (told["choices"][0]["finish_reason"], told["usage"]["completion_tokens"]) == ("length", 40)
        assert COMPLETION_TOKENS < 40
