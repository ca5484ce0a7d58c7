"""An engine's own errors, in the envelope."""

from __future__ import annotations

import json

import pytest

from controller.schema.errors import ErrorEnvelope
from gateway.protocols.common.errors import client_status, engine_body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"detail": "no such temperature"}', "no such temperature"),
        (b'{"detail": [{"loc": ["body"], "msg": "missing"}]}', '[{"loc":["body"],"msg":"missing"}]'),
        (b'{"object":"error","message":"context is full","code":40303}', "context is full"),
        (b'{"error": "model not found"}', "model not found"),
        (b'{"error": {"code": 5}}', '{"code":5}'),
        (
            b"<html><head><title>t</title><style>p {}</style></head><body><h1>502</h1> Bad\n Gateway</body>",
            "502 Bad Gateway",
        ),
        (b"plain text", "plain text"),
        (b"", "The engine answered with status 500 and no message."),
        (b"{}", "{}"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_engines_message_is_kept(body: bytes, message: str) -> None:
    error = ErrorEnvelope.model_validate_json(engine_body(500, body, "req-1")).error
    assert error.message == message
    assert (error.status, error.code, error.type, error.request_id) == (500, "engine_error", "server_error", "req-1")


def test_a_client_error_stays_one() -> None:
    error = json.loads(engine_body(422, b"nope", "req-1"))["error"]
    assert (error["type"], error["status"]) == ("invalid_request_error", 422)


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("body.temperature", "temperature"),
        ("body.messages.0.role", "messages[0].role"),
        ("body.messages.0.ChatCompletionUserMessageParam.content", "messages[0].content"),
        ("body.tools.12", "tools[12]"),
        ("max_tokens", "max_tokens"),
        (None, None),
    ],
)
def test_the_place_of_an_error(told: str | None, place: str | None) -> None:
    body = {"error": {"message": "m", "type": "Bad Request", "param": told, "code": 400}}
    error = ErrorEnvelope.model_validate_json(engine_body(400, json.dumps(body).encode(), "req-1")).error
    assert (error.param, error.code, error.status) == (place, "engine_error", 400)


def test_a_long_message_is_cut() -> None:
    error = ErrorEnvelope.model_validate_json(engine_body(500, b"x" * 10_000_000, "req-1")).error
    assert len(error.message) == 1000


@pytest.mark.parametrize(("status", "sent"), [(200, 200), (201, 201), (400, 400), (503, 503), (307, 502), (304, 502)])
def test_status(status: int, sent: int) -> None:
    assert client_status(status) == sent
