"""Whatever an engine answers as an error, the client gets one in its family's form."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.common import errors
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.errors import client_status
from gateway.protocols.common.request import parse_request
from gateway.protocols.llama_native.dialect import NATIVE
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
