"""Every API that llama-server speaks itself, by model name, through a gateway, on real llama-servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.errors import ERROR_CODES
from contract.routing import ModelRoute
from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.request import parse_request
from gateway.protocols.llama_native import NATIVE
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, started
from tests.support.queueing import key
from tests.support.scripted_model_file import SPOKEN, TEMPLATE, THOUGHT, make_caller
from tests.support.worker_process import Worker
from worker.clockwork import SENTENCE, make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

Fields = dict[str, Any]

TOKEN = "replica-token"
MODES: dict[str, tuple[Fields, tuple[str, ...]]] = {
    "plain": ({}, ()),
    "caller": ({}, ()),
    "vectors": ({"llama_server_embedding": True}, ("--embeddings", "--pooling", "mean")),
    "ranks": ({"llama_server_reranking": True}, ("--reranking",)),
}
HI: Fields = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ['Pa"ris ü']}, "n": {"enum": [1]}},
    "required": ["city", "n"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
SUM = {"name": "sum", "parameters": {"type": "object", "properties": {"x": {"enum": [[1, 2]]}}}}
OTHER = {"type": "function", "function": SUM}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}
LETTER: Fields = {**HI, "max_tokens": 60}
GAP: Fields = {"input_prefix": "a", "input_suffix": "b", "temperature": 0, "n_predict": 30}
BEGUN: Fields = {"prompt": "<|assistant|>", "temperature": 0}
UNKNOWABLE = ("id", "created", "timings", "id_slot", "created_at", "completed_at", "call_id")
CACHED = ("cached_tokens", "cache_read_input_tokens", "tokens_cached", "input_tokens", "cache_n", "prompt_n")
STATE: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/slots", None),
    ("POST", "/slots/0?action=erase", {}),
    ("POST", "/props", {}),
    ("POST", "/lora-adapters", []),
)


@pytest.fixture(scope="module")
def servers(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """llama-servers: one that says the sentence, one that thinks and calls tools, one each for vectors and ranks."""
    folder = tmp_path_factory.mktemp("servers")
    make_model(folder / "plain.gguf")
    make_caller(folder / "caller.gguf")
    (folder / "caller.jinja").write_text(TEMPLATE)
    with ExitStack() as stack:
        made = {}
        for name, (_, flags) in MODES.items():
            file = folder / ("caller.gguf" if name == "caller" else "plain.gguf")
            template = ("--chat-template-file", str(folder / "caller.jinja")) if name == "caller" else ()
            made[name] = stack.enter_context(started(kind, folder, name, file, *flags, *template, token=TOKEN))
        yield {name: worker.ready() for name, worker in made.items()}


def model(servers: dict[str, Worker], name: str) -> ModelRoute:
    """The table's entry of a server, as the controller would make it."""
    definition = LlamaServerDefinition.model_validate({"model_path": "m.gguf", **MODES[name][0]})
    made = route(
        name,
        [f"http://127.0.0.1:{servers[name].port}"],
        token=TOKEN,
        aliases=(f"alias-of-{name}",),
        served_name=f"inner-{name}",
        apis=LlamaServer().list_apis(definition),
        target_inflight=4,
    )
    return made.model_copy(update={"notices_leaving": LlamaServer.notices_leaving})


@pytest.fixture
async def gateway(servers: dict[str, Worker]) -> AsyncIterator[GatewayHarness]:
    async with gateway_harness() as built:
        await built.publish(*(model(servers, name) for name in MODES))
        yield built


def known(value: Any) -> Any:
    """An answer without the values that no two answers have in common; thoughts under both of their names."""
    if isinstance(value, dict):
        made = {name: None if name in UNKNOWABLE + CACHED else known(each) for name, each in value.items()}
        return made | {"reasoning": made["reasoning_content"]} if "reasoning_content" in made else made
    return [known(each) for each in value] if isinstance(value, list) else value


CASES: list[tuple[str, str, Fields]] = [
    ("plain", "/v1/chat/completions", HI),
    ("plain", "/v1/chat/completions", {**HI, "n": 2, "max_tokens": 3, "seed": 7}),
    ("plain", "/v1/chat/completions", {**HI, "stop": ["fox"]}),
    ("plain", "/v1/chat/completions", {**HI, "stop": ["fox"], "max_tokens": 9}),
    ("plain", "/v1/chat/completions", {**HI, "logprobs": True, "top_logprobs": 2}),
    ("plain", "/v1/chat/completions", {**HI, "response_format": SCHEMA}),
    ("plain", "/v1/chat/completions", {**HI, "unknown_field": {"model": "x"}, "ignore_eos": True, "max_tokens": 20}),
    ("caller", "/v1/chat/completions", {**HI, "tools": [TOOL], "tool_choice": "required"}),
    ("caller", "/v1/chat/completions", {**HI, "reasoning_format": "none", "max_tokens": 80}),
    ("plain", "/v1/completions", {"prompt": "<|assistant|>", "temperature": 0, "logprobs": 2}),
    ("plain", "/v1/completions", {"prompt": ["<|assistant|>", "<|assistant|>The"], "temperature": 0, "max_tokens": 4}),
    ("plain", "/v1/messages", LETTER),
    ("caller", "/v1/messages", {**LETTER, "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
                                "tool_choice": {"type": "any"}}),
    ("plain", "/v1/messages", {**LETTER, "stop_sequences": ["fox"]}),
    ("plain", "/v1/messages/count_tokens", LETTER),
    ("vectors", "/v1/embeddings", {"input": ["one", "two"]}),
    ("vectors", "/v1/embeddings", {"input": "one", "encoding_format": "base64"}),
    ("plain", "/v1/chat/completions/input_tokens", HI),
    ("caller", "/v1/chat/completions/input_tokens", {**HI, "tools": [TOOL], "stream": True}),
    ("plain", "/tokenize", {"content": SENTENCE, "with_pieces": True}),
    ("plain", "/detokenize", {"tokens": [72, 105]}),
    ("caller", "/apply-template", HI),
    ("caller", "/infill", GAP),
    ("caller", "/infill", {**GAP, "stop": ["fox"], "n_probs": 1}),
    ("plain", "/completion", {**BEGUN, "n_predict": 30}),
    ("plain", "/completion", {**BEGUN, "prompt": ["<|assistant|>", "<|assistant|>The"], "n_predict": 4}),
    ("plain", "/completion", {**BEGUN, "n_predict": 4, "n_probs": 2, "grammar": 'root ::= "yes"'}),
    ("plain", "/v1/chat/completions", {**HI, "max_tokens": 3, "stream": False}),
    ("plain", "/v1/chat/completions", {**HI, "max_tokens": 0}),
    ("plain", "/v1/chat/completions", {**HI, "temperature": 5, "seed": 7, "top_k": 3, "min_p": 0, "max_tokens": 20}),
    ("plain", "/v1/chat/completions", {**HI, "return_progress": True, "timings_per_token": True}),
    ("plain", "/v1/chat/completions", {**HI, "grammar": 'root ::= "ü€" "😀"'}),
    ("plain", "/v1/chat/completions", {**HI, "stream_options": {"include_usage": False}}),
    ("caller", "/v1/chat/completions", HI),
    ("caller", "/v1/chat/completions", {**HI, "tools": [TOOL, OTHER], "logit_bias": {"[TOOL_CALLS]": 100},
                                        "tool_choice": "required", "parallel_tool_calls": True, "max_tokens": 150}),
    ("caller", "/v1/chat/completions", {**HI, "tools": [TOOL], "n": 2}),
    ("caller", "/v1/chat/completions", {**HI, "max_tokens": 3}),
    ("plain", "/v1/completions", BEGUN),
    ("plain", "/v1/completions", {**BEGUN, "stop": "jump"}),
    ("plain", "/v1/completions", {**BEGUN, "max_tokens": 0}),
    ("plain", "/v1/completions", {**BEGUN, "prompt": ["<|assistant|>", "<|assistant|>The"], "n": 2, "logprobs": 1}),
    ("plain", "/v1/completions", {**BEGUN, "ignore_eos": True, "max_tokens": 5000}),
    ("plain", "/v1/messages", {**LETTER, "max_tokens": 3}),
    ("caller", "/v1/messages", {**LETTER, "max_tokens": 100}),
    ("caller", "/infill", {**GAP, "n": 2, "n_probs": 2, "n_predict": 5}),
    ("plain", "/completion", {**BEGUN, "prompt": ["<|assistant|>", "<|assistant|>The"], "n_predict": 3, "n": 2}),
    ("plain", "/completion", {**BEGUN, "n_predict": 3, "n_cmpl": None, "n": 2}),
    ("plain", "/completion", {**BEGUN, "n_predict": 3, "n_cmpl": 1, "n": 2}),
    ("plain", "/completion", {"prompt": ["The", 5, "fox"], "temperature": 0, "n_predict": 3}),
    ("plain", "/completion", {"prompt": [{"prompt_string": "The"}, {"prompt_string": "The fox"}], "temperature": 0,
                              "n_predict": 3}),
    ("vectors", "/embedding", {"content": "one"}),
    ("vectors", "/embedding", {"input": ["one", "two"]}),
    # What it refuses, it refuses in its own words.
    ("plain", "/v1/chat/completions", {"messages": 3}),
    ("plain", "/v1/completions", {"prompt": "a", "grammar": "root ::= broken"}),
    ("plain", "/v1/chat/completions/input_tokens", {"messages": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "fields"), CASES, ids=[f"{n}-{a}{b}" for n, (a, b, _) in enumerate(CASES)])
async def test_an_answer_is_the_engines_own(
    gateway: GatewayHarness, servers: dict[str, Worker], name: str, path: str, fields: Fields
) -> None:
    own_status, own = servers[name].request("POST", path, {"model": f"inner-{name}", **fields})
    for called in (name, f"alias-of-{name}"):
        made = await gateway.post(path, {"model": called, **fields})
        assert made.status == own_status
        if made.status < 400:
            assert known(made.body) == known(json.loads(own))
        else:
            assert made.error["message"] == json.loads(own)["error"]["message"]
            assert made.code == "engine_error"


async def test_the_cases_are_what_they_seem(gateway: GatewayHarness) -> None:
    chat = (await gateway.post("/v1/chat/completions", {"model": "plain", **HI})).body
    assert chat["choices"][0]["message"]["content"] == SENTENCE
    tools: Fields = {"tools": [TOOL], "tool_choice": "required"}
    called = (await gateway.post("/v1/chat/completions", {"model": "caller", **HI, **tools})).body
    message = called["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, SPOKEN)
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": 'Pa"ris ü', "n": 1}
    counted = (await gateway.post("/v1/messages/count_tokens", {"model": "plain", **LETTER})).body
    assert counted["input_tokens"] > 0
    tokens = (await gateway.post("/tokenize", {"model": "plain", "content": " fox"})).body
    text = (await gateway.post("/detokenize", {"model": "plain", **tokens})).body
    assert text["content"] == " fox"
    ranked = (await gateway.post("/v1/rerank", {"model": "ranks", "query": "a", "documents": ["a", "b"]})).body
    assert {result["index"] for result in ranked["results"]} == {0, 1}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/infill", "/completion"])
async def test_streams_pass_to_their_end(gateway: GatewayHarness, path: str) -> None:
    fields = {"/v1/completions": {**BEGUN, "max_tokens": 80}, "/infill": GAP, "/completion": {**BEGUN, "n_predict": 80}}
    body = {"model": "caller", "stream": True, **fields.get(path, LETTER)}
    reply = await gateway.post(path, body)
    content = reply.text
    assert (reply.status, reply.headers["x-queue-position"]) == (200, "1")
    assert reply.headers["content-type"].startswith("text/event-stream")
    ends = {"/v1/messages": "message_stop", "/infill": '"stop":true', "/completion": '"stop":true'}
    assert ends.get(path, "data: [DONE]\n\n") in content
    assert '"error"' not in content
    said = "".join(content.split('"')[1::2]) if path in ("/infill", "/completion") else content
    assert "fox" in said
    await gateway.idle()


@pytest.mark.parametrize("path", ["/props", "/lora-adapters"])
async def test_what_has_no_body_is_named_in_the_query(
    gateway: GatewayHarness, servers: dict[str, Worker], path: str
) -> None:
    for name in ("plain", "alias-of-plain"):
        reply = await gateway.get(f"{path}?model={name}")
        expected = known(json.loads(servers["plain"].request("GET", path)[1]))
        if path == "/props":
            assert expected["model_path"].startswith("/")
            expected |= {"ui": True, "model_path": "plain.gguf"}
        assert (reply.status, known(reply.body)) == (200, expected)
    reply = await gateway.get(path)
    if path == "/props":
        assert (reply.status, reply.body["role"]) == (200, "router")
        return
    assert (reply.status, reply.code, reply.error["param"]) == (400, "invalid_request", "model")
    assert "?model=NAME" in reply.error["message"]
    assert (await gateway.get(f"{path}?model=nobody")).code == "unknown_model"


async def test_without_a_model_the_only_one_that_has_the_route_is_meant(
    gateway: GatewayHarness, servers: dict[str, Worker]
) -> None:
    assert (await gateway.post("/infill", GAP)).code == "invalid_request", "two have it"
    await gateway.publish(model(servers, "caller"), model(servers, "vectors"))
    assert (await gateway.post("/infill", GAP)).status == 200
    assert (await gateway.post("/infill?model=alias-of-caller", GAP)).status == 200
    await gateway.publish(model(servers, "plain"))
    assert (await gateway.get("/props")).body["role"] == "router", "as in llama-server's router mode, also for one"
    assert "tokens" in (await gateway.post("/tokenize", {"content": "a"})).body


@pytest.mark.parametrize(
    ("name", "path", "fields"),
    [
        ("vectors", "/v1/chat/completions", HI),
        ("vectors", "/v1/chat/completions/input_tokens", HI),
        ("vectors", "/v1/completions", {"prompt": "a"}),
        ("vectors", "/v1/responses", {"input": "a"}),
        ("vectors", "/v1/messages", LETTER),
        ("ranks", "/v1/messages/count_tokens", LETTER),
        ("plain", "/v1/embeddings", {"input": "a"}),
        ("plain", "/v1/rerank", {"query": "a", "documents": ["a"]}),
        ("vectors", "/v2/rerank", {"query": "a", "documents": ["a"]}),
        ("ranks", "/infill", GAP),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_does_not_offer_is_said_in_the_apis_form(
    gateway: GatewayHarness, name: str, path: str, fields: Fields, stream: bool
) -> None:
    reply = await gateway.post(path, {"model": name, "stream": stream, **fields})
    entry = ERROR_CODES["not_supported"]
    assert (reply.status, reply.error["next_steps"]) == (entry.status, list(entry.next_steps))
    assert name in reply.error["message"]
    if path.startswith("/v1/messages"):
        assert (reply.body["type"], reply.body["request_id"]) == ("error", reply.headers["x-request-id"])
    else:
        assert (reply.code, reply.error["request_id"]) == ("not_supported", reply.headers["x-request-id"])


async def test_an_engines_state_is_not_to_be_had_by_default(gateway: GatewayHarness) -> None:
    for method, path, body in STATE:
        reply = await gateway.request(method, f"{path}{'&' if '?' in path else '?'}model=plain", body)
        assert reply.refusal == (403, "route_disabled"), path
        assert "ROUNDHOUSE_ENGINE_STATE_ROUTES" in " ".join(reply.error["next_steps"])


@pytest.mark.parametrize(("method", "path", "body"), STATE)
async def test_an_engines_state_is_for_admins(servers: dict[str, Worker], method: str, path: str, body: Any) -> None:
    named = f"{path}{'&' if '?' in path else '?'}model=plain"
    async with gateway_harness(engine_state_routes=True) as gateway:
        keys = (key("user"), key("boss", scopes=("admin",)))
        await gateway.publish(model(servers, "plain"), keys=keys)
        assert (await gateway.request(method, named, body, key="secret-user")).refusal == (403, "scope_required")
        reply = await gateway.request(method, named, body, key="secret-boss")
        assert reply.status == servers["plain"].request(method, path, body)[0] == 200
        if path == "/slots":
            assert [slot["id"] for slot in reply.body] == [0, 1, 2, 3]


async def test_nothing_of_a_client_that_goes_away_stays(gateway: GatewayHarness) -> None:
    async with aiohttp.ClientSession() as leaving:
        for path, fields in (("/tokenize", {"content": "a" * 9000}), ("/v1/messages", LETTER)):
            with pytest.raises(TimeoutError):
                async with leaving.post(
                    gateway.url + path, json={"model": "plain", **fields}, timeout=aiohttp.ClientTimeout(total=0.0005)
                ):
                    pass
    await gateway.idle()


# Blocking answers are made of streams, but for these: without it, the answer would not be the engine's.
NOT_OF_A_STREAM: list[tuple[Dialect, str, Fields]] = [
    (CHAT, "/v1/chat/completions", {**HI, "logprobs": True, "top_logprobs": 1}),
    (COMPLETIONS, "/v1/completions", {**BEGUN, "logprobs": 1, "stop": "."}),
    (COMPLETIONS, "/v1/completions", {**BEGUN, "prompt": "<|assistant|> fox", "max_tokens": 2, "stop": [" overt"]}),
    (NATIVE, "/completion", {**BEGUN, "n_predict": 2, "return_tokens": True, "grammar": 'root ::= "€"'}),
]


@pytest.mark.parametrize(("dialect", "path", "fields"), NOT_OF_A_STREAM)
def test_what_is_not_made_of_a_stream_really_differs(
    servers: dict[str, Worker], dialect: Dialect, path: str, fields: Fields
) -> None:
    body = json.dumps({"model": "demo", **fields}).encode()
    request = parse_request(body, may_stream=True)
    assert dialect.open_collector(request) is None
    own = json.loads(servers["plain"].request("POST", path, body)[1])
    anyway = dialect.open_collector(parse_request(b'{"model": "demo"}', may_stream=True))
    assert anyway is not None
    stream = servers["plain"].request("POST", path, dialect.engine_body(request, route("demo"), as_stream=True))[1]
    anyway.feed_data(stream.encode())
    result = anyway.build_result()
    assert result is not None
    assert known(json.loads(result[1])) != known(own)


OFFERS: dict[str, Fields] = {
    "text": {},
    "embedding": {"llama_server_embedding": True},
    "vectors of tokens": {"llama_server_embedding": True, "llama_server_pooling": "none"},
    "reranking": {"llama_server_reranking": True},
}
OFFER_FLAGS = {
    "embedding": ("--embeddings", "--pooling", "mean"),
    "vectors of tokens": ("--embeddings", "--pooling", "none"),
    "reranking": ("--reranking",),
}
EXAMPLES: dict[str, Any] = {
    "/v1/chat/completions": {**HI, "max_tokens": 2},
    "/v1/chat/completions/input_tokens": HI,
    "/v1/completions": {**BEGUN, "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "temperature": 0, "max_output_tokens": 2},
    "/v1/messages": {**LETTER, "max_tokens": 2},
    "/v1/messages/count_tokens": LETTER,
    "/v1/embeddings": {"input": "a"},
    "/v1/rerank": {"query": "a", "documents": ["a", "b"]},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [65]},
    "/apply-template": HI,
    "/infill": GAP,
    "/completion": {**BEGUN, "n_predict": 2},
    "/embedding": {"content": "a"},
}
"""What is posted; other paths are read."""


@pytest.mark.parametrize("mode", OFFERS)
def test_the_engine_answers_what_it_is_said_to_offer(kind: Kind, tmp_path: Path, mode: str) -> None:
    definition = LlamaServerDefinition.model_validate({"model_path": "m.gguf", **OFFERS[mode]})
    apis, probe = LlamaServer().list_apis(definition), LlamaServer().describe_probe(definition)
    make_caller(tmp_path / "m.gguf")
    (tmp_path / "m.jinja").write_text(TEMPLATE)
    flags = ("--chat-template-file", str(tmp_path / "m.jinja"), *OFFER_FLAGS.get(mode, ()))
    with started(kind, tmp_path, "m", tmp_path / "m.gguf", *flags, token=TOKEN) as server:
        server.ready()
        for path in apis:
            method = "POST" if path in EXAMPLES else "GET"
            assert server.request(method, path, EXAMPLES.get(path))[0] == 200, path
        assert server.request("POST", probe.ready_path, probe.ready_body)[0] == 200, "it would never be loaded"
        for path in {"/v1/embeddings", "/v1/rerank"} - set(apis):
            if (mode, path) != ("reranking", "/v1/embeddings"):  # it answers, with nothing but zeros
                assert server.request("POST", path, EXAMPLES[path])[0] in (400, 501), path
