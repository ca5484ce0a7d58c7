"""Whatever an engine answers as an error, the client gets one in its family's form, and no address is left in it."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.runtimes.base import replica_name
from controller.state import ReplicaId
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common import errors
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.errors import client_status
from gateway.protocols.common.hiding import HIDDEN, hide_addresses, hide_in_json
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import parse_request
from gateway.protocols.llama_native import NATIVE
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from tests.support.campaign import campaign_count
from tests.support.outcomes import present
from tests.support.responses import context

DIALECTS: tuple[Dialect, ...] = (CHAT, MESSAGES, NATIVE, RESPONSES_VIA_CHAT)

FIELDS = {"message": str, "type": str, "code": str, "status": int, "actionable": bool, "next_steps": list}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
error_objects = st.fixed_dictionaries(
    {},
    optional={
        "message": st.just("m") | values,
        "type": st.sampled_from(("error", "overloaded_error")) | values,
        "code": st.sampled_from(("queue_full", 400)) | values,
        "status": st.integers(300, 700) | st.sampled_from(("500", None, True)) | values,
        "actionable": st.booleans() | values,
        "next_steps": st.just([]) | values,
        "param": values,
        "request_id": values,
    },
)
bodies = (
    values
    | error_objects
    | st.fixed_dictionaries(
        {"error": error_objects | values}, optional={"type": st.just("error"), "message": values, "detail": values}
    )
)
statuses = st.integers(400, 599)
WHOLE = {"message": "m", "type": "t", "code": "c", "actionable": True, "next_steps": []}


def _check(dialect: Dialect, status: int, body: bytes) -> None:
    told = dialect.engine_error_body(status, body, "r")
    error = json.loads(told)["error"]
    dialect.error_as_events(told)
    if dialect is MESSAGES and told is body:
        assert errors.is_anthropic(json.loads(body))
        return
    assert {name: type(error[name]) for name in FIELDS} == FIELDS
    assert error["status"] == client_status(status)


@settings(max_examples=campaign_count(40, 3_000))
@given(bodies, statuses)
@example({"error": WHOLE | {"status": "500"}}, 500)
@example({"error": WHOLE | {"status": None}}, 500)
@example({"error": WHOLE | {"status": 200}}, 503)
@example({"error": WHOLE | {"status": 500, "actionable": "yes"}}, 500)
def test_any_json_becomes_an_error_in_every_form(value: Any, status: int) -> None:
    body = json.dumps(value).encode()
    for dialect in DIALECTS:
        _check(dialect, status, body)
    errors.status_of(value)
    error = value.get("error", value) if isinstance(value, dict) else value
    event = b'event: error\ndata: {"type":"error","error":' + json.dumps(error).encode() + b"}\n\n"
    for dialect in DIALECTS:
        _stream(dialect, event)


@settings(max_examples=campaign_count(40, 3_000))
@given(st.binary(max_size=50), statuses)
def test_any_bytes_become_an_error_in_every_form(body: bytes, status: int) -> None:
    for dialect in DIALECTS:
        _check(dialect, status, body)


def _stream(dialect: Dialect, event: bytes) -> None:
    request = parse_request(b'{"model":"m","stream":true}', may_stream=True)
    request.state = context()
    events = present(dialect.open_stream(request))
    events.feed_data(event)


@pytest.mark.slow
@pytest.mark.parametrize(
    "frame",
    [
        *("%s", '{"error":%s}', '{"detail":%s}', '{"error":{"message":"m","x":%s}}'),
        '{"type":"error","error":{"type":"t","message":%s}}',
        '{"error":{"message":"m","type":"t","code":"c","status":500,"actionable":true,"next_steps":%s}}',
        '{"error":{"message":"m","type":"t","code":"c","status":"500","actionable":true,"next_steps":%s}}',
    ],
)
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_any_depth_of_nesting_becomes_an_error_in_every_form(frame: str, opening: str, closing: str) -> None:
    """Around the depths where reading or writing again begins to fail: at each in a campaign, at every sixth in CI."""
    depths = [100, *range(380, 410), *range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 5), 100_000]
    for depth in depths[:: campaign_count(6, 1)]:
        body = (frame % (opening * depth + "1" + closing * depth)).encode()
        for dialect in DIALECTS:
            _check(dialect, 500, body)
            _higher_up(100, dialect.error_as_events, dialect.engine_error_body(500, body, "r"))
            _stream(dialect, b"data: " + body + b"\n\n")
            _stream(dialect, b"event: error\ndata: " + body + b"\n\n")


def _higher_up(frames: int, call: Callable[[bytes], bytes], body: bytes) -> bytes:
    return _higher_up(frames - 1, call, body) if frames else call(body)


ALL_DIALECTS: tuple[Dialect, ...] = (CHAT, COMPLETIONS, MESSAGES, NATIVE, JSON_DIALECT, RESPONSES_VIA_CHAT)

LETTERS, DIGITS = "ghijklmnopqrstuvwxyz", "0123456789"
labels = st.builds(
    lambda first, inner, last: first + inner + last,
    st.sampled_from(LETTERS),
    st.text(LETTERS + DIGITS + "-_", min_size=4, max_size=20),
    st.sampled_from(LETTERS + DIGITS),
)
names = st.lists(labels, min_size=1, max_size=4).map(".".join)
ports = st.integers(10, 65535)
ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).filter(lambda each: int(each) > 0xFFFF) | st.integers(0, 2**32 - 1).map(
    lambda number: ipaddress.IPv6Address(f"::ffff:{ipaddress.IPv4Address(number)}")
)
ipv6_texts = st.builds(lambda address, exploded: address.exploded if exploded else str(address), ipv6, st.booleans())
hosts = names | ipv4 | ipv6_texts.map(lambda each: f"[{each}]")
replicas = st.builds(
    lambda model, index, digest, attempt: replica_name("prod", ReplicaId(model, index, digest, attempt)),
    st.text(min_size=1, max_size=30),
    st.integers(0, 999),
    st.text("0123456789abcdef", min_size=8, max_size=8),
    st.integers(1, 10**6),
)
addresses = st.one_of(
    st.builds("{}://{}:{}/v1/x?y=1".format, st.sampled_from(("http", "HTTPS", "tcp", "grpc")), hosts, ports),
    st.builds("{}://{}".format, st.sampled_from(("http", "https")), hosts),
    st.builds("{}:{}".format, hosts, ports),
    ipv4,
    ipv6_texts,
    replicas,
    names.map("{}.internal".format),
    names.map("host='{}'".format),
)
"""Each in the form in which engines and their libraries write it."""
around = st.text(st.characters(codec="utf-8"), max_size=15)
before = st.sampled_from(["", " ", "(", "'", '"', "=", "<", "\n", ", ", "at "])
after = st.sampled_from(["", " ", ")", "'", '"', ",", ">", "\n", ": ", ". ", "; "])


FRAMES = (
    *("%s", '{"detail":%s}', '{"error":%s}', '{"error":{"message":%s}}'),
    '{"error":{"message":"m","code":%s,"type":%s,"param":%s}}',
    '{"error":{"message":"m","metadata":{"raw":[%s]}}}',
    *('{"type":"error","error":{"type":"api_error","message":%s}}', '{"message":%s,"x":1}'),
    '{"error":{"message":%s,"type":"t","code":"c","status":500,"actionable":true,"next_steps":[]}}',
    '{"error":{"message":"m","type":"t","code":"c","status":500,"actionable":true,"next_steps":[%s]}}',
)
"""Bodies of errors."""


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """A text that holds an address, and the address."""
    address = draw(addresses)
    opening, closing = draw(around), draw(around)
    # A character that could be a part of a name makes another name of it, or another number.
    opening += draw(before) or " "
    closing = (draw(after) or " ") + closing
    return opening + address + closing, address


def _check_hidden(told: str | bytes, address: str) -> None:
    """Nothing of the address is left that would give it away."""
    host = address.rpartition("://")[2].partition("/")[0].removeprefix("host=").strip("'")
    if host.startswith("["):
        trace = host[1:].partition("]")[0]
    else:
        trace = host if host.count(":") > 1 else host.partition(":")[0]
    assert trace not in (told if isinstance(told, str) else told.decode())


json_values = st.recursive(
    texts().map(lambda said: said[0]) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(around, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=campaign_count(200, 20_000))
@given(texts())
def test_no_address_is_left_in_a_text(said: tuple[str, str]) -> None:
    text, address = said
    told = hide_addresses(text)
    _check_hidden(told, address)
    assert HIDDEN in told
    assert hide_addresses(told) == told, "what is hidden stays as it is"


@settings(max_examples=campaign_count(100, 10_000))
@given(st.text(st.characters(codec="utf-8", exclude_characters=":./\\=-[]"), max_size=200))
def test_words_without_the_signs_of_addresses_stay(text: str) -> None:
    assert hide_addresses(text) == text


@settings(max_examples=campaign_count(60, 3_000))
@given(texts(), st.integers(400, 599), st.sampled_from(FRAMES))
def test_no_address_is_left_in_an_engines_error(said: tuple[str, str], status: int, frame: str) -> None:
    text, address = said
    body = frame.replace("%s", json.dumps(text)).encode()
    for dialect in ALL_DIALECTS:
        told = dialect.engine_error_body(status, body, "r")
        _check_hidden(told, address)
        _check_hidden(dialect.error_as_events(told), address)
        for event in (b"data: %b\n\n", b"event: error\ndata: %b\n\n", b"event:error\ndata: %b\n\n", b"error: %b\n\n"):
            if body.startswith((b'{"error"', b'{"type"')) or event.startswith(b"e"):
                _check_hidden(_streamed(dialect, event % body), address)


def _streamed(dialect: Dialect, events: bytes) -> bytes:
    request = parse_request(b'{"model":"m","stream":true}', may_stream=True)
    request.state = context()
    stream = present(dialect.open_stream(request))
    return stream.feed_data(events) + stream.finish_stream()


@settings(max_examples=campaign_count(30, 3_000))
@given(json_values)
def test_json_keeps_its_form(value: object) -> None:
    told = hide_in_json(value)
    assert type(told) is type(value)
    assert json.loads(json.dumps(told)) == told
