"""Reading a request body, and changing as little of it as can be."""

from __future__ import annotations

import json

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import InferenceRequest, parse_native, parse_request
from tests.fakes.fake_controller import route


def refused(raw: bytes) -> RoundhouseError:
    with pytest.raises(RoundhouseError) as caught:
        parse_request(raw, may_stream=True)
    return caught.value


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b'{"model": "m",\n "stream": tru}', "line 2 column 12"),
        (b"", "line 1 column 1"),
        (b'{"model": "m"', "line 1 column 14"),
        (b'{"model": "m"} trailing', "line 1 column 16"),
        (b'{"model": "\xff"}', "byte 11"),
        (b'{"model": "m", "temperature": NaN}', "NaN"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_malformed_json_names_the_place(raw: bytes, place: str) -> None:
    error = refused(raw)
    assert error.entry.code == "invalid_json"
    assert place in error.message


@pytest.mark.parametrize("raw", [b"[]", b'"m"', b"3", b"null"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    assert refused(raw).entry.code == "invalid_json"


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{}", "model"),
        (b'{"model": 3}', "model"),
        (b'{"model": ""}', "model"),
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


def test_a_client_that_asks_for_usage_itself_changes_nothing() -> None:
    raw = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    request = parse_request(raw, may_stream=True)
    assert request.wants_usage
    assert CHAT.engine_body(request, route("m"), as_stream=False) == raw


def test_an_alias_is_rewritten_and_every_other_field_kept() -> None:
    fields = {"model": "alias", "messages": [{"role": "user", "content": "Grüße \U0001f600"}], "seed": 2**60, "x": None}
    sent = JSON_DIALECT.engine_body(
        parse_request(json.dumps(fields).encode(), may_stream=True), route("real/name:1"), as_stream=False
    )
    assert json.loads(sent) == fields | {"model": "real/name:1"}


def test_a_lone_surrogate_survives_rewriting() -> None:
    raw = b'{"model":"alias","prompt":"\\ud800"}'
    sent = JSON_DIALECT.engine_body(parse_request(raw, may_stream=True), route("m"), as_stream=False)
    assert json.loads(sent)["prompt"] == "\ud800"


def test_a_number_that_json_cannot_write_again_is_refused() -> None:
    raw = b'{"model":"alias","temperature":1e999,"stream":true,"stream_options":{}}'
    with pytest.raises(RoundhouseError, match="1e999") as caught:
        parse_request(raw, may_stream=True)
    assert caught.value.entry.code == "invalid_request"


def test_numbers_of_any_size_and_half_characters_are_written_as_they_were() -> None:
    raw = (
        b'{"model":"alias","seed":123456789012345678901234567890,"prompt":"\\ud83d","stream_options":{},"stream":true}'
    )
    sent = json.loads(CHAT.engine_body(parse_request(raw, may_stream=True), route("m"), as_stream=False))
    assert (sent["seed"], sent["prompt"]) == (123456789012345678901234567890, "\ud83d")


def test_an_api_without_streams_passes_the_field_on_and_stays_blocking() -> None:
    raw = b'{"model":"m","stream":true}'
    request = parse_request(raw, may_stream=False)
    assert not request.stream
    assert JSON_DIALECT.engine_body(request, route("m"), as_stream=False) == raw


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
        (b"model=m&x=1", {}, "m", False),
        (b"model=m&x=1", {"model": None}, "m", False),
        (b"x=1", {"model": "m"}, "m", True),
        (b"model=m&x=1", {"model": "m"}, "m", True),
        (b"model=&x=1", {"model": "m"}, "m", True),
        (b"model=&x=1", {"model": ""}, "sole", False),
        (b"x=1", {}, "sole", False),
    ],
)
def test_where_a_native_request_names_its_model(query: bytes, fields: object, model: str, names_model: bool) -> None:
    request = native(query, fields)
    assert (request.model, request.names_model, request.target) == (model, names_model, "/tokenize?x=1")


def test_an_alias_that_query_and_body_name_is_rewritten_in_the_body() -> None:
    sent = JSON_DIALECT.engine_body(
        native(b"model=alias", {"model": "alias", "content": "x"}), route("real"), as_stream=False
    )
    assert json.loads(sent) == {"model": "real", "content": "x"}


def test_a_native_request_that_names_no_model_where_there_are_several_is_refused() -> None:
    with pytest.raises(RoundhouseError, match="names no model"):
        native(b"", {}, sole=None)
