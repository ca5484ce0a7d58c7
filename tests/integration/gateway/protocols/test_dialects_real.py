"""Blocking answers made of streams, compared with what real llama-servers answer to the same blocking call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common.dialect import Dialect, Usage
from gateway.protocols.common.request import parse_request
from gateway.protocols.llama_native.dialect import NATIVE
from tests.fakes.fake_controller import route
from tests.support.clockwork_caller import TEMPLATE, make_caller
from tests.support.llama_servers import Kind, needed, started
from tests.support.messages_gateway import TOKEN, llama_servers
from tests.support.worker_process import Worker

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

Fields = dict[str, Any]

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/messages": MESSAGES,
    "/infill": NATIVE,
    "/completion": NATIVE,
}
UNKNOWABLE = ("id", "created", "timings", "id_slot", "created_at", "completed_at", "call_id")
CACHED = ("cached_tokens", "cache_read_input_tokens", "tokens_cached", "input_tokens")
"""How much of a prompt a slot still held: of the two calls, each has its own."""

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
PROMPT: Fields = {"prompt": "<|assistant|>", "temperature": 0}
GAP: Fields = {"input_prefix": "a", "input_suffix": "b", "temperature": 0, "n_predict": 30}
LETTER: Fields = {**HI, "max_tokens": 100}
TOO_LONG = "x" * 9000


@pytest.fixture(scope="module", params=["embedded", "binary"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    needed(kind)
    return kind


@pytest.fixture(scope="module")
def servers(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    with llama_servers(kind, tmp_path_factory.mktemp("servers")) as servers:
        yield servers


def known(value: Any) -> Any:
    """An answer without the values that no two answers have in common."""
    if isinstance(value, dict):
        return {name: None if name in UNKNOWABLE + CACHED else known(each) for name, each in value.items()}
    return [known(each) for each in value] if isinstance(value, list) else value


def post(server: Worker, path: str, body: bytes) -> tuple[int, str, bytes]:
    connection = server.open("POST", path, body)
    try:
        response = connection.getresponse()
        return response.status, response.headers["content-type"], response.read()
    finally:
        connection.close()


def gathered(server: Worker, path: str, fields: Fields, *, part: int = 700) -> tuple[int, Any, Usage | None]:
    """The answer as the gateway makes it of a stream: status, body, usage."""
    dialect = DIALECTS[path]
    request = parse_request(json.dumps({"model": "demo", **fields}).encode(), may_stream=True)
    gathering = dialect.open_collector(request)
    assert gathering is not None
    status, content_type, stream = post(server, path, dialect.engine_body(request, route("demo"), as_stream=True))
    if not content_type.startswith("text/event-stream"):
        assert status >= 400
        return status, json.loads(stream), None
    for start in range(0, len(stream), part):
        gathering.feed_data(stream[start : start + part])
    result = gathering.build_result()
    assert result is not None
    return result[0], json.loads(result[1]), gathering.usage


CASES: list[tuple[str, str, Fields]] = [
    ("plain", "/v1/chat/completions", HI),
    ("plain", "/v1/chat/completions", {**HI, "max_tokens": 3, "stream": False}),
    ("plain", "/v1/chat/completions", {**HI, "max_tokens": 0}),
    ("plain", "/v1/chat/completions", {**HI, "n": 2, "max_tokens": 3}),
    ("plain", "/v1/chat/completions", {**HI, "temperature": 5, "seed": 7, "top_k": 3, "min_p": 0, "max_tokens": 20}),
    ("plain", "/v1/chat/completions", {**HI, "return_progress": True, "timings_per_token": True}),
    ("plain", "/v1/chat/completions", {**HI, "response_format": SCHEMA}),
    ("plain", "/v1/chat/completions", {**HI, "grammar": 'root ::= "ü€" "😀"'}),
    ("plain", "/v1/chat/completions", {**HI, "stream_options": {"include_usage": False}}),
    ("plain", "/v1/chat/completions", {**HI, "n": 99}),
    ("plain", "/v1/chat/completions", {**HI, "messages": [{"role": "user", "content": TOO_LONG}]}),
    ("caller", "/v1/chat/completions", HI),
    ("caller", "/v1/chat/completions", {**HI, "tools": [TOOL], "tool_choice": "required"}),
    ("caller", "/v1/chat/completions", {**HI, "tools": [TOOL, OTHER], "logit_bias": {"[TOOL_CALLS]": 100},
                                        "tool_choice": "required", "parallel_tool_calls": True, "max_tokens": 150}),
    ("caller", "/v1/chat/completions", {**HI, "tools": [TOOL], "n": 2}),
    ("caller", "/v1/chat/completions", {**HI, "max_tokens": 3}),
    ("plain", "/v1/completions", PROMPT),
    ("plain", "/v1/completions", {**PROMPT, "logprobs": 2}),
    ("plain", "/v1/completions", {**PROMPT, "stop": "jump"}),
    ("plain", "/v1/completions", {**PROMPT, "max_tokens": 0}),
    ("plain", "/v1/completions", {**PROMPT, "prompt": ["<|assistant|>", "<|assistant|>The"], "n": 2, "logprobs": 1}),
    ("plain", "/v1/completions", {**PROMPT, "ignore_eos": True, "max_tokens": 5000}),
    ("plain", "/v1/completions", {"prompt": TOO_LONG}),
    ("plain", "/v1/messages", LETTER),
    ("plain", "/v1/messages", {**LETTER, "max_tokens": 3}),
    ("plain", "/v1/messages", {**LETTER, "messages": [{"role": "user", "content": TOO_LONG}]}),
    ("caller", "/v1/messages", LETTER),
    ("caller", "/v1/messages", {**LETTER, "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
                                "tool_choice": {"type": "any"}}),
    ("caller", "/infill", GAP),
    ("caller", "/infill", {**GAP, "n": 2, "n_probs": 2, "n_predict": 5}),
    ("caller", "/infill", {**GAP, "input_extra": 3}),
    ("plain", "/infill", GAP),
    ("plain", "/completion", {**PROMPT, "prompt": ["<|assistant|>", "<|assistant|>The"], "n_predict": 3, "n": 2}),
    ("plain", "/completion", {**PROMPT, "n_predict": 3, "n_cmpl": None, "n": 2}),
    ("plain", "/completion", {**PROMPT, "n_predict": 3, "n_cmpl": 1, "n": 2}),
    ("plain", "/completion", {"prompt": ["The", 5, "fox"], "temperature": 0, "n_predict": 3}),
    ("plain", "/completion", {"prompt": [{"prompt_string": "The"}, {"prompt_string": "The fox"}], "temperature": 0,
                              "n_predict": 3}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("server", "path", "fields"), CASES, ids=[f"{n}-{name}{path}" for n, (name, path, _) in enumerate(CASES)]
)
def test_an_answer_made_of_a_stream_is_the_engines_own(
    servers: dict[str, Worker], server: str, path: str, fields: Fields
) -> None:
    engine = servers[server]
    body = json.dumps({"model": "demo", **fields}).encode()
    status, _, whole = post(engine, path, body)
    request = parse_request(body, may_stream=True)
    change = DIALECTS[path].get_body_converter(request)
    own = json.loads(change(whole) if change is not None and status == 200 else whole)
    made_status, made, usage = gathered(engine, path, fields)
    assert (made_status, known(made)) == (status, known(own))
    if status == 200:
        told = DIALECTS[path].find_usage(whole, request)
        assert told is not None
        assert usage is not None
        if DIALECTS[path] is NATIVE:
            assert usage == told
        else:  # of several answers, the engine tells the first one's usage
            assert usage.completion >= told.completion
            assert usage.prompt == told.prompt or "prompt" in fields


NOT_OF_A_STREAM: list[tuple[str, Fields]] = [
    ("/v1/chat/completions", {**HI, "logprobs": True, "top_logprobs": 1}),
    ("/v1/completions", {**PROMPT, "logprobs": 1, "stop": "."}),
    ("/v1/completions", {**PROMPT, "prompt": "<|assistant|> fox", "max_tokens": 2, "stop": [" overt"]}),
    ("/completion", {**PROMPT, "n_predict": 2, "return_tokens": True, "grammar": 'root ::= "€"'}),
]


@pytest.mark.parametrize(("path", "fields"), NOT_OF_A_STREAM)
def test_what_is_refused_really_differs(servers: dict[str, Worker], path: str, fields: Fields) -> None:
    # The reason for each exclusion: without it, the answer would not be the engine's.
    dialect = DIALECTS[path]
    body = json.dumps({"model": "demo", **fields}).encode()
    request = parse_request(body, may_stream=True)
    assert dialect.open_collector(request) is None
    own = json.loads(post(servers["plain"], path, body)[2])
    anyway = dialect.open_collector(parse_request(json.dumps({"model": "demo"}).encode(), may_stream=True))
    assert anyway is not None
    anyway.feed_data(post(servers["plain"], path, dialect.engine_body(request, route("demo"), as_stream=True))[2])
    result = anyway.build_result()
    assert result is not None
    assert known(json.loads(result[1])) != known(own)


MODES: dict[str, tuple[Fields, tuple[str, ...]]] = {
    "text": ({}, ()),
    "embedding": ({"llama_server_embedding": True}, ("--embeddings", "--pooling", "mean")),
    "vectors of tokens": (
        {"llama_server_embedding": True, "llama_server_pooling": "none"},
        ("--embeddings", "--pooling", "none"),
    ),
    "reranking": ({"llama_server_reranking": True}, ("--reranking",)),
}
EXAMPLES: dict[str, tuple[str, Any]] = {
    "/v1/chat/completions": ("POST", {**HI, "max_tokens": 2}),
    "/v1/chat/completions/input_tokens": ("POST", HI),
    "/v1/completions": ("POST", {**PROMPT, "max_tokens": 2}),
    "/v1/responses": ("POST", {"input": "Hi", "temperature": 0, "max_output_tokens": 2}),
    "/v1/messages": ("POST", {**LETTER, "max_tokens": 2}),
    "/v1/messages/count_tokens": ("POST", LETTER),
    "/v1/embeddings": ("POST", {"input": "a"}),
    "/v1/rerank": ("POST", {"query": "a", "documents": ["a", "b"]}),
    "/tokenize": ("POST", {"content": "a"}),
    "/detokenize": ("POST", {"tokens": [65]}),
    "/apply-template": ("POST", HI),
    "/props": ("GET", None),
    "/slots": ("GET", None),
    "/lora-adapters": ("GET", None),
    "/infill": ("POST", GAP),
    "/completion": ("POST", {**PROMPT, "n_predict": 2}),
    "/embedding": ("POST", {"content": "a"}),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_engine_answers_what_it_is_said_to_offer(kind: Kind, tmp_path: Path, mode: str) -> None:
    fields, flags = MODES[mode]
    definition = LlamaServerDefinition.model_validate({"model_path": "m.gguf", **fields})
    apis, probe = LlamaServer().list_apis(definition), LlamaServer().describe_probe(definition)
    make_caller(tmp_path / "m.gguf")
    (tmp_path / "m.jinja").write_text(TEMPLATE)
    template = ("--chat-template-file", str(tmp_path / "m.jinja"))
    with started(kind, tmp_path, "m", tmp_path / "m.gguf", *template, *flags, token=TOKEN) as server:
        server.ready()
        for path in apis:
            method, body = EXAMPLES[path]
            assert server.request(method, path, body)[0] == 200, path
        assert server.request("POST", probe.ready_path, probe.ready_body)[0] == 200, "it would never be loaded"
        for path in {"/v1/embeddings", "/v1/rerank"} - set(apis):
            if (mode, path) != ("reranking", "/v1/embeddings"):  # it answers, with nothing but zeros
                assert server.request("POST", path, EXAMPLES[path][1])[0] in (400, 501), path
