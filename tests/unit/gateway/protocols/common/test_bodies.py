"""What engines are asked: the client's bytes, with as little changed as can be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import parse_native, parse_request
from gateway.protocols.llama_native.dialect import NATIVE
from tests.fakes.fake_controller import route

USAGE = {"include_usage": True}


def asked(dialect: Dialect, raw: bytes, served: str = "m", *, as_stream: bool = False) -> bytes:
    return dialect.engine_body(parse_request(raw, may_stream=True), route(served), as_stream=as_stream)


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, NATIVE, JSON_DIALECT])
def test_a_blocking_body_is_the_clients_own(dialect: Dialect) -> None:
    raw = b'{ "model":"m",\n "x": 1e3 }'
    assert asked(dialect, raw) is raw


def test_a_stream_of_openais_is_asked_for_usage() -> None:
    raw = b'{ "model":"m","stream":true, "x": 1.50 }'
    assert asked(CHAT, raw) == b'{"stream_options":{"include_usage":true}, "model":"m","stream":true, "x": 1.50 }'
    wanted = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    assert asked(CHAT, wanted) is wanted
    other = b'{"model":"m","stream":true,"stream_options":{"include_usage":false,"y":2}}'
    assert json.loads(asked(CHAT, other))["stream_options"] == {"include_usage": True, "y": 2}


@pytest.mark.parametrize("dialect", [MESSAGES, NATIVE])
def test_other_families_tell_usage_unasked(dialect: Dialect) -> None:
    raw = b'{"model":"m","stream":true}'
    assert asked(dialect, raw) is raw


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"stream": False},
        {"stream": None},
        {"stream_options": {"y": 1}},
        {"stream": False, "note": "stream"},
        {"stream": False, "x": {"stream": False}},
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
        b'{"model" : "m","x":1}',
        b'{"x":"model","model":"m"}',
        b'{"x":{"model":"m"},"model":"m"}',
        rb'{"mod\u0065l":"m","x":{"model":"m"}}',
        rb'{"model":"\u006d"}',
        b'{"model":"z","model":"m"}',
    ],
)
def test_the_model_gets_the_name_that_its_engine_knows(raw: bytes) -> None:
    assert json.loads(asked(JSON_DIALECT, raw, "ü\\")) == json.loads(raw) | {"model": "ü\\"}


def test_bytes_that_must_not_change_stay_when_the_model_is_renamed() -> None:
    assert asked(CHAT, b'{"x":1.50, "model": "m"}', "n") == b'{"x":1.50, "model":"n"}'


def test_a_native_request_whose_model_is_in_the_query_gets_no_name() -> None:
    for raw in (b'{"input_prefix":"a"}', b"{ }", b'{"model":7}'):
        request = parse_native(raw, b"model=m", "/infill", None, body="object")
        assert NATIVE.engine_body(request, route("n"), as_stream=False) is raw
        changed = json.loads(NATIVE.engine_body(request, route("n"), as_stream=True))
        assert changed == json.loads(raw) | {"stream": True}
    state = parse_native(b"[]", b"model=m", "/lora-adapters", None, body="any")
    assert JSON_DIALECT.engine_body(state, route("n"), as_stream=False) == b"[]"
