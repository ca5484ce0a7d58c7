"""Reading a request body, and changing as little of it as can be."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import completion_create_params as completions
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params as chats
from openai.types.responses import response_create_params as responses

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.chat.tool_forms import FUNCTIONS
from gateway.protocols.common.bodies import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    MESSAGE_FIELDS,
    check_foreign_fields,
    drop_foreign_fields,
    route_to_module,
)
from gateway.protocols.common.capabilities import check_length
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.errors import find_overflow
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.large_body import BLOCK_BYTES, LARGE_BYTES, LargeBody
from gateway.protocols.common.request import InferenceRequest, parse_native, parse_request
from gateway.protocols.common.request_fields import (
    AS_CHAT,
    OURS,
    PARAMS,
    REQUEST_FIELDS,
    Api,
    check_as_chat,
    check_effects,
    rename_error,
)
from gateway.protocols.completions import COMPLETIONS_VIA_CHAT
from gateway.protocols.llama_native import NATIVE
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from tests.fakes.fake_controller import route
from tests.support.doc_tables import effect_rows, rows_of
from tests.support.outcomes import error_of, present
from tests.support.responses import context


def refused(raw: bytes) -> RoundhouseError:
    return error_of(lambda: parse_request(raw, may_stream=True))


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"model": "m",\n "stream": tru}', "line 2 column 12"),
        *((b"", "line 1 column 1"), (b'{"model": "m"', "line 1 column 14")),
        *((b'{"model": "m"} trailing', "line 1 column 16"), (b'{"model": "\xff"}', "byte 11")),
        *((b'{"model": "m", "temperature": NaN}', "NaN"), (b'{"a":' * 100_000, "nested too deeply")),
        *((raw, "") for raw in (b"[]", b'"m"', b"3", b"null")),  # no objects
    ],
)
def test_malformed_json_names_the_place(raw: bytes, place: str) -> None:
    error = refused(raw)
    assert error.entry.code == "invalid_json"
    assert place in error.message


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        *((b"{}", "model"), (b'{"model": 3}', "model"), (b'{"model": ""}', "model")),
        (b'{"model": "m", "stream": 1}', "stream"),
        (b'{"model": "m", "stream": "yes"}', "stream"),
        (b'{"model": "m", "stream_options": []}', "stream_options"),
    ],
)
def test_a_wrong_field_is_named(raw: bytes, param: str) -> None:
    error = refused(raw)
    assert (error.entry.code, error.param) == ("invalid_request", param)
    assert f"`{param}`" in error.message


def test_the_original_bytes_are_forwarded_where_nothing_must_change() -> None:
    raw = b'{ "model":"m",  "messages": [], "n": 1.50, "unknown": {"model": "x"} }'
    assert CHAT.engine_body(parse_request(raw, may_stream=True), route("m"), as_stream=False) == raw


def test_an_api_without_streams_passes_the_field_on_and_stays_blocking() -> None:
    raw = b'{"model":"m","stream":true}'
    request = parse_request(raw, may_stream=False)
    assert not request.stream
    assert JSON_DIALECT.engine_body(request, route("m"), as_stream=False) == raw


def test_a_client_that_asks_for_usage_itself_changes_nothing() -> None:
    raw = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    request = parse_request(raw, may_stream=True)
    assert request.wants_usage
    assert CHAT.engine_body(request, route("m"), as_stream=False) == raw


def test_asking_for_usage_inserts_and_leaves_the_rest_alone() -> None:
    raw = b' {"model":"m","stream":true,"temperature":1.0e0,"s":"\\ud83d"}'
    body = CHAT.engine_body(parse_request(raw, may_stream=True), route("m"), as_stream=False)
    assert (
        body
        == b' {"stream_options":{"include_usage":true},"model":"m","stream":true,"temperature":1.0e0,"s":"\\ud83d"}'
    )


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None, "other": 1}])
def test_asking_for_usage_keeps_other_stream_options(options: dict[str, object] | None) -> None:
    raw = json.dumps({"model": "m", "stream": True, "stream_options": options}).encode()
    request = parse_request(raw, may_stream=True)
    assert not request.wants_usage
    sent = json.loads(CHAT.engine_body(request, route("m"), as_stream=False))
    assert sent["stream_options"] == (options or {}) | {"include_usage": True}


def test_what_is_rewritten_keeps_every_other_field() -> None:
    fields = {"model": "alias", "messages": [{"role": "user", "content": "Grüße \U0001f600"}], "seed": 2**60, "x": None}
    sent = JSON_DIALECT.engine_body(
        parse_request(json.dumps(fields).encode(), may_stream=True), route("real/name:1"), as_stream=False
    )
    assert json.loads(sent) == fields | {"model": "real/name:1"}
    # A lone surrogate survives rewriting.
    raw = b'{"model":"alias","prompt":"\\ud800"}'
    sent = JSON_DIALECT.engine_body(parse_request(raw, may_stream=True), route("m"), as_stream=False)
    assert json.loads(sent)["prompt"] == "\ud800"
    # Numbers of any size and half characters are written as they were.
    raw = (
        b'{"model":"alias","seed":123456789012345678901234567890,"prompt":"\\ud83d","stream_options":{},"stream":true}'
    )
    sent = json.loads(CHAT.engine_body(parse_request(raw, may_stream=True), route("m"), as_stream=False))
    assert (sent["seed"], sent["prompt"]) == (123456789012345678901234567890, "\ud83d")
    # Bytes that must not change stay when the model is renamed.
    assert asked(CHAT, b'{"x":1.50, "model": "m"}', "n") == b'{"x":1.50, "model":"n"}'
    # An alias that query and body name is rewritten in the body.
    sent = JSON_DIALECT.engine_body(
        native(b"model=alias", {"model": "alias", "content": "x"}), route("real"), as_stream=False
    )
    assert json.loads(sent) == {"model": "real", "content": "x"}


def test_a_number_that_json_cannot_write_again_is_refused() -> None:
    raw = b'{"model":"alias","temperature":1e999,"stream":true,"stream_options":{}}'
    with pytest.raises(RoundhouseError, match="1e999") as caught:
        parse_request(raw, may_stream=True)
    assert caught.value.entry.code == "invalid_request"


def test_a_native_request_that_names_no_model_where_there_are_several_is_refused() -> None:
    with pytest.raises(RoundhouseError, match="names no model"):
        native(b"", {}, sole=None)


def native(query: bytes, fields: object, *, sole: str | None = "sole") -> InferenceRequest:
    return parse_native(json.dumps(fields).encode(), query, "/tokenize", sole, body="object")


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        (b"model=ok", {"model": "forbidden"}),
        (b"model=ok&model=forbidden", {}),
        (b"model=ok&model=forbidden", {"model": "ok"}),
    ],
)
def test_a_request_that_names_two_models_is_refused(query: bytes, fields: object) -> None:
    with pytest.raises(RoundhouseError, match="'forbidden', 'ok'") as caught:
        native(query, fields)
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "model")


@pytest.mark.parametrize(
    ("query", "fields", "model", "names_model"),
    [
        *((b"model=m&x=1", {}, "m", False), (b"model=m&x=1", {"model": None}, "m", False)),
        *((b"x=1", {"model": "m"}, "m", True), (b"model=m&x=1", {"model": "m"}, "m", True)),
        *((b"model=&x=1", {"model": "m"}, "m", True), (b"model=&x=1", {"model": ""}, "sole", False)),
        (b"x=1", {}, "sole", False),
    ],
)
def test_where_a_native_request_names_its_model(query: bytes, fields: object, model: str, names_model: bool) -> None:
    request = native(query, fields)
    assert (request.model, request.names_model, request.target) == (model, names_model, "/tokenize?x=1")


USAGE = {"include_usage": True}


def asked(dialect: Dialect, raw: bytes, served: str = "m", *, as_stream: bool = False) -> bytes:
    return dialect.engine_body(parse_request(raw, may_stream=True), route(served), as_stream=as_stream)


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, NATIVE, JSON_DIALECT])
def test_a_blocking_body_is_the_clients_own_and_other_families_tell_usage_unasked(dialect: Dialect) -> None:
    raw, stream = b'{ "model":"m",\n "x": 1e3 }', b'{"model":"m","stream":true}'
    assert asked(dialect, raw) is raw
    assert (asked(dialect, stream) is stream) is (dialect is not CHAT)


def test_a_stream_of_openais_is_asked_for_usage() -> None:
    raw = b'{ "model":"m","stream":true, "x": 1.50 }'
    assert asked(CHAT, raw) == b'{"stream_options":{"include_usage":true}, "model":"m","stream":true, "x": 1.50 }'
    wanted = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    assert asked(CHAT, wanted) is wanted
    other = b'{"model":"m","stream":true,"stream_options":{"include_usage":false,"y":2}}'
    assert json.loads(asked(CHAT, other))["stream_options"] == {"include_usage": True, "y": 2}


@pytest.mark.parametrize(
    "extra",
    [
        *({}, {"stream": False}, {"stream": None}, {"stream_options": {"y": 1}}),
        *({"stream": False, "note": "stream"}, {"stream": False, "x": {"stream": False}}),
        {"x": '\u0001 "stream": false'},
    ],
)
@pytest.mark.parametrize("served", ["m", 'other "name"'])
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, NATIVE])
def test_a_blocking_call_becomes_a_stream(dialect: Dialect, served: str, extra: dict[str, Any]) -> None:
    fields = {"model": "m", "messages": ["ü"], **extra}
    body = json.loads(asked(dialect, json.dumps(fields, ensure_ascii=False).encode(), served, as_stream=True))
    expected = {**fields, "model": served, "stream": True}
    if dialect is CHAT:
        expected["stream_options"] = fields.get("stream_options", {}) | USAGE
    assert body == expected


@pytest.mark.parametrize(
    "raw",
    [
        *(b'{"model" : "m","x":1}', b'{"x":"model","model":"m"}', b'{"x":{"model":"m"},"model":"m"}'),
        *(rb'{"mod\u0065l":"m","x":{"model":"m"}}', rb'{"model":"\u006d"}', b'{"model":"z","model":"m"}'),
    ],
)
def test_the_model_gets_the_name_that_its_engine_knows(raw: bytes) -> None:
    assert json.loads(asked(JSON_DIALECT, raw, "ü\\")) == json.loads(raw) | {"model": "ü\\"}


def test_a_native_request_whose_model_is_in_the_query_gets_no_name() -> None:
    for raw in (b'{"input_prefix":"a"}', b"{ }", b'{"model":7}'):
        request = parse_native(raw, b"model=m", "/infill", None, body="object")
        assert NATIVE.engine_body(request, route("n"), as_stream=False) is raw
        changed = json.loads(NATIVE.engine_body(request, route("n"), as_stream=True))
        assert changed == json.loads(raw) | {"stream": True}
    state = parse_native(b"[]", b"model=m", "/lora-adapters", None, body="any")
    assert JSON_DIALECT.engine_body(state, route("n"), as_stream=False) == b"[]"


ASKED: dict[str, Any] = {"model": "m", "messages": [], "top_k": 3, "client_metadata": {"session_id": "s"}}


def remote(*extra_fields: str, **more: Any) -> ModelRoute:
    return route("m", ["http://x"], extra_fields=extra_fields, **more)


@pytest.mark.parametrize(
    ("known", "declared"),
    [
        (CHAT_FIELDS, [chats.CompletionCreateParamsStreaming]),
        (COMPLETION_FIELDS, [completions.CompletionCreateParamsStreaming]),
        (EMBEDDING_FIELDS, [embeddings.EmbeddingCreateParams]),
        (
            MESSAGE_FIELDS - {"output_format"},
            [messages.MessageCreateParamsStreaming, beta_messages.MessageCreateParamsStreaming],
        ),
        (frozenset(REQUEST_FIELDS["responses"]), [responses.ResponseCreateParamsStreaming]),
    ],
    ids=["chat", "completions", "embeddings", "messages", "responses"],
)
def test_a_familys_fields_are_those_of_its_own_package(known: Set[str], declared: list[Any]) -> None:
    names = {name for each in declared for name in get_type_hints(each)}
    assert names <= known
    # What an older API or a sampling parameter of it was called may be missing in the newest types.
    assert known - names <= {"temperature", "top_p", "top_k"}


def test_the_docs_say_what_each_field_does() -> None:
    for api in REQUEST_FIELDS:
        assert rows_of("fields.md", api.capitalize()) == effect_rows(api)


IDLE: dict[str, list[Any]] = {
    "modalities": [["text"]],
    "n": [1],
    "best_of": [1],
    "frequency_penalty": [0, 0.0],
    "presence_penalty": [0],
}
ASKING: dict[str, list[Any]] = {
    "modalities": [["text", "audio"], ["image"], "audio"],
    "web_search_options": [{}, {"search_context_size": "low"}],
    "n": [2, "2"],
    "best_of": [3],
    "logprobs": [0, 5],
}
REFUSED = [
    (api, name, by)
    for api, fields in REQUEST_FIELDS.items()
    for name, field in fields.items()
    for by in sorted(field.refused)
]


@pytest.mark.parametrize(("api", "name", "by"), REFUSED)
def test_a_field_that_asks_for_what_nobody_gives_is_refused_by_its_name(api: Api, name: str, by: str) -> None:
    model = route("m", backend="vllm_serve" if by == OURS else by)

    def check(value: Any, of: ModelRoute = model) -> None:
        asked = {"model": "m", name: value}
        if by == AS_CHAT:
            check_as_chat(asked, api)
        else:
            check_effects(asked, api, of)

    for value in (None, False, "", [], *IDLE.get(name, ())):
        check(value)
    for value in ASKING.get(name, ["x", {"x": 1}, [5], True, 3]):
        error = error_of(lambda: check(value))  # noqa: B023 - called at once
        assert (error.entry.status, error.param) == (400, name)
        assert error.entry.code in ("not_supported", "invalid_request")
        assert f"`{name}` cannot be used" in error.message
        assert REQUEST_FIELDS[api][name].note in error.message
        if by != AS_CHAT:
            check(value, route("m", backend="openai_remote"))


def test_a_best_of_that_is_n_asks_for_nothing() -> None:
    check_effects({"n": 4, "best_of": 4}, "completions", route("m", backend="llama_server"))


CLIENTS: list[tuple[Dialect, str, str | None]] = [
    (RESPONSES_VIA_CHAT, "max_tokens", "max_output_tokens"),
    (RESPONSES_VIA_CHAT, "max_completion_tokens", "max_output_tokens"),
    (RESPONSES_VIA_CHAT, "body.messages.0.UserMessage.role", "input"),
    (RESPONSES_VIA_CHAT, "response_format.json_schema.schema", "text.format"),
    (RESPONSES_VIA_CHAT, "reasoning_effort", "reasoning.effort"),
    (RESPONSES_VIA_CHAT, "tools[0].function.name", "tools"),
    (RESPONSES_VIA_CHAT, "temperature", "temperature"),
    (RESPONSES_VIA_CHAT, "stop", None),
    (RESPONSES_VIA_CHAT, "top_k", "top_k"),
    (MESSAGES_VIA_CHAT, "stop[1]", "stop_sequences"),
    (MESSAGES_VIA_CHAT, "messages[3].content[0]", "messages"),
    (MESSAGES_VIA_CHAT, "max_completion_tokens", "max_tokens"),
    (MESSAGES_VIA_CHAT, "reasoning_effort", "output_config.effort"),
    (MESSAGES_VIA_CHAT, "stream_options", None),
    (COMPLETIONS_VIA_CHAT, "messages[0].content", "prompt"),
    (COMPLETIONS_VIA_CHAT, "stop[0]", "stop[0]"),
    (FUNCTIONS, "tools[1].function.parameters", "functions[1].parameters"),
    (FUNCTIONS, "tool_choice", "function_call"),
    (FUNCTIONS, "messages[2].content", "messages[2].content"),
    (CHAT, "tools[1].function.parameters", "tools[1].function.parameters"),
]


@pytest.mark.parametrize(("dialect", "param", "own"), CLIENTS)
def test_an_engines_error_names_the_clients_own_field(dialect: Dialect, param: str, own: str | None) -> None:
    body = json_bytes({"error": {"message": "wrong", "type": "x", "code": 400, "param": param}})
    assert json.loads(dialect.engine_error_body(400, body, "r"))["error"]["param"] == own
    request = parse_request(json_bytes({"model": "m", "stream": True, **ASKS[dialect]}), may_stream=True)
    request.id = "r"
    if dialect is RESPONSES_VIA_CHAT:
        request.state = context()
    dialect.check_request(request, route("m"))
    events = dialect.open_stream(request).feed_data(b"data: " + body + b"\n\n")
    found = re.findall(rb'"param": ?(null|"[^"]*")', events)
    assert {json.loads(each) for each in found} == {own}


ASKS: dict[Dialect, dict[str, Any]] = {
    RESPONSES_VIA_CHAT: {"input": "Hi"},
    MESSAGES_VIA_CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    COMPLETIONS_VIA_CHAT: {"prompt": "Hi"},
    FUNCTIONS: {"messages": [], "functions": [{"name": "f"}]},
    CHAT: {"messages": []},
}


def test_an_error_without_a_field_stays_as_it_is() -> None:
    for body in (b"", b"[]", b'{"error": 5}', b'{"error": {"message": "x", "param": null}}'):
        assert all(rename_error(body, form) is body for form in (*PARAMS, None))


def test_a_remote_gets_what_the_family_knows_and_what_it_lists() -> None:
    assert drop_foreign_fields(ASKED, CHAT_FIELDS, route("m", ["http://x"])) is ASKED
    asked = dict(ASKED)
    assert drop_foreign_fields(asked, CHAT_FIELDS, remote()) == {"model": "m", "messages": []}
    assert drop_foreign_fields(asked, CHAT_FIELDS, remote("top_k")) == {"model": "m", "messages": [], "top_k": 3}
    assert asked == ASKED
    assert drop_foreign_fields(asked, CHAT_FIELDS, remote("top_k", "client_metadata")) is asked
    asked = {"model": "m", "chat_template_kwargs": {"enable_thinking": False}, "thinking": "disabled"}
    kept = drop_foreign_fields(asked, CHAT_FIELDS, remote(thinking_control="chat_template_kwargs"))
    assert kept.keys() == {"model", "chat_template_kwargs"}


@pytest.mark.parametrize("name", ["guided_json", "grammar", "json_schema", "structured_outputs"])
def test_a_form_that_would_not_reach_a_remote_is_refused(name: str) -> None:
    asked = {**ASKED, name: {"type": "object"}}
    error = error_of(lambda: check_foreign_fields(asked, CHAT_FIELDS, remote()))
    assert (error.entry.code, error.param) == ("structured_output_unsupported", name)
    assert "remote_fields" in str(error)
    check_foreign_fields(asked, CHAT_FIELDS, remote(name))
    check_foreign_fields({**ASKED, name: None}, CHAT_FIELDS, remote())
    check_foreign_fields(asked, CHAT_FIELDS, route("m", ["http://x"]))


MODEL = route("m", served_name="inner", lora_modules=("french", "terse"))


def _request(**fields: Any) -> InferenceRequest:
    return parse_request(json_bytes({"model": "m", "messages": [], **fields}), may_stream=True)


def test_the_name_of_a_lora_module_is_the_engines_name_for_the_model() -> None:
    chosen = route_to_module(_request(lora="terse"), MODEL)
    assert chosen == MODEL.model_copy(update={"served_name": "terse"})
    assert MODEL.served_name == "inner"
    for model in (MODEL, route("m", lora_modules=())):
        assert route_to_module(_request(), model) is model
        assert route_to_module(_request(lora=None), model) is model
    own = route("m")
    for value in ("french", [{"id": 0, "scale": 1}], 3):
        assert route_to_module(_request(lora=value), own) is own


@pytest.mark.parametrize("value", ["", "inner", "m", "French", 0, False, ["french"], {"french": 1}, [{"id": 0}]])
def test_what_names_no_module_is_refused_with_those_there_are(value: Any) -> None:
    for model, words in ((MODEL, "one of french, terse."), (route("m", lora_modules=()), "has no LoRA modules.")):
        with pytest.raises(RoundhouseError) as caught:
            route_to_module(_request(lora=value), model)
        assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "lora")
        assert caught.value.message.endswith(words)


CODE = 'def f(x):\n\treturn "a\\n%s" % x  # comment \\\n'
IMAGE = "iVBORw0KGgo+/" * 80_000
TEXTS = {
    "base64": IMAGE,
    "prose": "The quick brown fox jumps over a lazy dog. " * 25_000,
    "code": CODE * 25_000,
    "code within JSON": json.dumps({"file": CODE * 25_000}),
    "Chinese": "敏捷的棕色狐狸" * 50_000,
    "pairs of surrogates": "😀🦊" * 50_000,
    "lines": "x\n" * 500_000,
}


def large_body(raw: bytes, part_bytes: int = 100_000) -> LargeBody:
    body = LargeBody()
    for start in range(0, len(raw), part_bytes):
        body.add_part(raw[start : start + part_bytes])
    body.finish()
    return body


def chat(text: str) -> dict[str, Any]:
    """A request with a text between others."""
    return {"model": "m", "messages": [{"role": "user", "content": f"See: {text} What is it?"}], "max_tokens": 4}


@pytest.mark.parametrize("is_ascii", [True, False], ids=["escaped", "UTF-8"])
@pytest.mark.parametrize("kind", TEXTS)
def test_a_long_string_is_left_out_and_put_back(kind: str, is_ascii: bool) -> None:
    fields = chat(TEXTS[kind])
    raw = json.dumps(fields, ensure_ascii=is_ascii).encode()
    body = large_body(raw)
    assert len(body.outline) < max(32 * 1024, len(raw) // 8)
    assert b"".join(body.fill(body.outline)) == body.join() == raw
    outline_fields = json.loads(body.outline)
    text = outline_fields["messages"][0]["content"]
    assert (text[:5], text[-11:]) == ("See: ", "What is it?")
    assert body.fill_text(text) == fields["messages"][0]["content"]
    body.fill_fields(outline_fields, kept_names=())
    assert outline_fields == fields


@pytest.mark.parametrize("kind", TEXTS)
def test_what_was_left_out_may_move_into_json_within_json(kind: str) -> None:
    fields = chat(TEXTS[kind])
    body = large_body(json.dumps(fields).encode())
    outline = json.loads(body.outline)
    for depth in range(1, 4):
        text = json.dumps(outline)
        for _ in range(depth - 1):
            text = json.dumps({"arguments": text})
        filled = json.loads(b"".join(body.fill(text.encode())))
        for _ in range(depth - 1):
            filled = json.loads(filled["arguments"])
        assert filled == fields, depth


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m", "prompt": list(range(100_000))},
        {"model": "m", "messages": [{"role": "user", "content": "hello"}] * 20_000},
        {"model": "m", "spaces": " " * 600_000},
        {"model": "m", "backslashes": "\\" * 300_000},
        {"model": "m", "quotes": '"' * 300_000},
    ],
    ids=lambda fields: str(list(fields)[1]),
)
def test_what_is_no_long_text_stays(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields).encode()
    body = large_body(raw)
    assert json.loads(b"".join(body.fill(body.outline))) == fields
    body.fill_fields(outline := json.loads(body.outline), kept_names=())
    assert outline == fields


def test_keys_of_objects_are_filled_in_their_order() -> None:
    key = TEXTS["prose"]
    fields: dict[str, Any] = {"model": "m", "tools": [{"a": 1, key: {"x": 1, key * 2: key}, "data": key, "b": 2}]}
    body = large_body(json.dumps(fields).encode())
    outline = json.loads(body.outline)
    assert outline != fields
    tool = outline["tools"][0]
    body.fill_fields(outline, kept_names=("data",))
    assert outline["tools"][0] is tool
    assert body.fill_text(tool["data"]) == key != tool["data"]
    assert json.dumps(outline) == json.dumps({"model": "m", "tools": [{**fields["tools"][0], "data": tool["data"]}]})


def test_an_outline_is_the_same_however_its_body_came() -> None:
    raw = json.dumps(chat(TEXTS["code"])).encode()
    outlines = {large_body(raw, part_bytes).outline for part_bytes in (999, 65536, 262144, len(raw))}
    assert len(outlines) == 1


def test_media_are_counted_apart_from_text() -> None:
    image, text = (large_body(json.dumps(chat(TEXTS[kind])).encode()) for kind in ("base64", "prose"))
    assert image.text_bytes < 32 * 1024
    assert image.text_bytes + image.media_bytes == image.size
    assert text.text_bytes == text.size


def test_a_body_that_holds_what_looks_like_a_mark_is_read_whole() -> None:
    marks = "\x01roundhouse-left-out-000000; and \\u0001roundhouse-left-out-000000;"
    raw = json.dumps(chat(marks + TEXTS["prose"])).encode()
    body = large_body(raw)
    assert body.outline == raw
    assert b"".join(body.fill(raw)) == raw


def test_whoever_asks_for_the_whole_body_gets_it() -> None:
    fields = chat(TEXTS["code"])
    raw = json.dumps(fields).encode()
    request = parse_request(large_body(raw), may_stream=True)
    assert request.outline_fields != fields
    assert (request.raw, request.fields, request.size) == (raw, fields, len(raw))
    assert (request.model, len(raw) > LARGE_BYTES) == ("m", True)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (json.dumps(chat(IMAGE)).encode()[:-1] + b",}", f"byte {len(json.dumps(chat(IMAGE)))}"),
        (json.dumps(chat(IMAGE)).encode()[:-1] + b"\xff}", f"byte {len(json.dumps(chat(IMAGE))) - 1} is wrong"),
    ],
    ids=["not JSON", "not UTF-8"],
)
def test_the_place_of_what_is_wrong_is_the_bodys(raw: bytes, words: str) -> None:
    with pytest.raises(RoundhouseError, match=words) as caught:
        parse_request(large_body(raw), may_stream=True)
    assert caught.value.entry.code == "invalid_json"


def test_text_that_is_no_utf_8_is_refused_where_it_is_read() -> None:
    raw = json.dumps(chat(TEXTS["prose"])).encode()
    middle = BLOCK_BYTES // 2
    body = large_body(raw[:middle] + b"\xff" + raw[middle + 1 :])
    with pytest.raises(RoundhouseError, match="not JSON's") as caught:
        body.fill_fields(json.loads(body.outline), kept_names=())
    assert caught.value.entry.code == "invalid_json"


def test_the_memory_of_a_large_body_goes_back_once() -> None:
    freed: list[bool] = []
    body = LargeBody(lambda: freed.append(True))
    body.add_part(b"x" * BLOCK_BYTES)
    body.finish()
    body.free()
    body.free()
    assert freed == [True]
    with pytest.raises(RuntimeError, match="freed"):
        body.join()  # not the outline in its place


LIMIT, LONGEST = 100, 8
FITS = "x" * (LIMIT * LONGEST)
ROUTE = route("m", context_length=LIMIT, longest_token=LONGEST)


def request(**fields: Any) -> InferenceRequest:
    return InferenceRequest(json.dumps(fields).encode(), fields, "m", stream=False, wants_usage=False)


def refusal(**fields: Any) -> RoundhouseError | None:
    """What is said of such a request; None: it passes."""
    try:
        check_length(request(**fields), ROUTE)
    except RoundhouseError as error:
        return error
    return None


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize(("text", "size"), [("x", 1), ("您 \n", 3), ("😀", 4)])
def test_the_text_of_a_large_body_counts_though_it_is_read_by_its_outline(text: str, size: int, is_ascii: bool) -> None:
    count = 400_000
    raw = json.dumps({"model": "m", "messages": user(text * count)}, ensure_ascii=is_ascii).encode()
    body = LargeBody()
    body.add_part(raw)
    body.finish()
    asked = parse_request(body, may_stream=True)
    assert len(asked.outline) < len(raw) // 10
    limit = count * size // LONGEST
    check_length(asked, route("m", context_length=limit, longest_token=LONGEST))
    error = error_of(lambda: check_length(asked, route("m", context_length=limit - 1, longest_token=LONGEST)))
    assert error.entry.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"messages": user(FITS + "x")}, "messages"),
        ({"messages": [*user(FITS), *user("x")]}, "messages"),
        ({"messages": user([{"type": "text", "text": FITS}, {"type": "text", "text": "x"}])}, "messages"),
        *(({"prompt": FITS + "x"}, "prompt"), ({"prompt": ["x", FITS + "x"]}, "prompt")),
        *(({"prompt": [7] * (LIMIT + 1)}, "prompt"), ({"input": [[7], [7] * (LIMIT + 1)]}, "input")),
        ({"input": "您" * (LIMIT * LONGEST // 3 + 1)}, "input"),
        ({"prompt": "x" * 40_000_000}, "prompt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_fit_is_refused_with_both_numbers(fields: dict[str, Any], place: str) -> None:
    error = present(refusal(**fields))
    assert (error.entry.code, error.param) == ("context_length_exceeded", place)
    told = present(find_overflow({"message": error.message}))
    assert (told.limit, told.is_at_least) == (LIMIT, True)
    assert told.prompt_tokens is not None
    assert told.prompt_tokens > LIMIT


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": user(FITS)},
        {"messages": user(FITS + " \n\t\u3000\u2581" * 1000)},
        {"messages": user(" " * 40_000_000)},
        {"messages": user([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + FITS * 9}}])},
        # Templates may leave these out.
        {"messages": [{"role": "system", "content": FITS * 9}, {"role": "assistant", "content": FITS * 9}]},
        {"messages": [{"role": "tool", "content": FITS * 9}], "tools": [{"description": FITS * 9}]},
        {"messages": user([{"type": "tool_result", "content": FITS * 9}, "text", {"type": "text", "text": 5}])},
        *({"messages": "x" * 9999}, {"prompt": [FITS, FITS]}, {"prompt": [7] * LIMIT}),
        *({"prompt": [7, FITS, {"prompt_string": FITS * 9}]}, {"prompt": [], "input": FITS * 9}),
        {"prompt": "\ud800" * 9999},
        # The engine cuts it off, or takes something else.
        {"input": FITS * 9, "truncation": "auto"},
        {"messages": user(FITS * 9), "truncate_prompt_tokens": 50},
        {"messages": user(FITS * 9), "chat_template": "Hi"},
        {"query": FITS * 9, "documents": [FITS * 9]},
    ],
    ids=range(17),
)
def test_what_may_fit_passes(fields: dict[str, Any]) -> None:
    assert refusal(**fields) is None


@pytest.mark.parametrize("fields", [{"context_length": None}, {"longest_token": None}, {"longest_token": 0}])
def test_where_a_figure_lacks_nothing_is_refused(fields: dict[str, Any]) -> None:
    check_length(request(prompt=FITS * 9), ROUTE.model_copy(update=fields))


def test_what_was_read_for_a_translation_counts_the_same() -> None:
    for text, is_refused in ((FITS, False), (FITS + "x", True)):
        asked = request(model="m", max_tokens=5, messages=[*user(text), *user([{"type": "tool_result"}])[1:]])
        asked.prompt = MESSAGES_VIA_CHAT.read_request(asked)
        if is_refused:
            with pytest.raises(RoundhouseError):
                check_length(asked, ROUTE)
        else:
            check_length(asked, ROUTE)
