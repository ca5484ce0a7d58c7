"""Errors in each family's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.schema.errors import ERROR_CODES, RoundhouseError
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common import errors
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.llama_native.dialect import NATIVE
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT

OPENAI_FORM = [CHAT, COMPLETIONS, RESPONSES_VIA_CHAT, NATIVE, JSON_DIALECT]
LLAMA = b'{"error":{"code":400,"message":"no such slot","type":"slot_error","id_slot":4096}}'
BUSY = RoundhouseError("queue_full", "Full.", param=None)


def body(content: bytes) -> Any:
    return json.loads(content)


@pytest.mark.parametrize("dialect", OPENAI_FORM)
def test_our_errors_in_openais_form(dialect: Dialect) -> None:
    assert body(dialect.error_body(BUSY, "r1")) == BUSY.build_envelope("r1").model_dump()


@pytest.mark.parametrize("dialect", OPENAI_FORM)
def test_an_engines_error_gets_every_field_and_keeps_its_own(dialect: Dialect) -> None:
    assert body(dialect.engine_error_body(400, LLAMA, "r1"))["error"] == {
        "code": "engine_error",
        "message": "no such slot",
        "type": "slot_error",
        "id_slot": 4096,
        "param": None,
        "status": 400,
        "actionable": True,
        "next_steps": list(ERROR_CODES["engine_error"].next_steps),
        "request_id": "r1",
    }


def test_an_engines_own_code_stays_if_it_is_text() -> None:
    theirs = b'{"error":{"message":"x","type":null,"code":"context_length_exceeded","param":"messages"}}'
    error = body(CHAT.engine_error_body(400, theirs, "r"))["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "context_length_exceeded",
        "messages",
        "invalid_request_error",
    )
    ours = body(CHAT.engine_error_body(501, b'{"error":{"message":"x","code":"not_supported"}}', "r"))["error"]
    assert ours["next_steps"] == list(ERROR_CODES["not_supported"].next_steps)


def test_an_envelope_of_ours_passes_as_it_is() -> None:
    envelope = BUSY.json_bytes("r0")
    assert CHAT.engine_error_body(429, envelope, "r1") is envelope


@pytest.mark.parametrize("content", [b"", b"<html>Bad gateway</html>", b"[]", b'{"detail":"no"}', b"[" * 5000])
def test_what_is_no_error_object_becomes_one(content: bytes) -> None:
    for dialect in (CHAT, MESSAGES):
        error = body(dialect.engine_error_body(500, content, "r"))["error"]
        assert error["message"]
        assert error["status"] == 500


@pytest.mark.parametrize("code", ERROR_CODES)
def test_our_errors_in_anthropics_form(code: str) -> None:
    entry = ERROR_CODES[code]
    told = body(MESSAGES.error_body(RoundhouseError(code, "What.", param="p"), "r1"))
    types = {
        400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
        408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error",
        501: "invalid_request_error", 503: "overloaded_error", 504: "timeout_error", 507: "api_error",
    }  # fmt: skip
    assert told == {
        "type": "error",
        "error": {
            "type": types.get(entry.status, "invalid_request_error"),
            "message": "prompt is too long: What." if code == "context_length_exceeded" else "What.",
            "code": code,
            "param": "p",
            "status": entry.status,
            "actionable": bool(entry.next_steps),
            "next_steps": list(entry.next_steps),
        },
        "request_id": "r1",
    }


def test_an_engines_error_in_anthropics_form() -> None:
    told = body(MESSAGES.engine_error_body(400, LLAMA, "r1"))
    assert errors.is_anthropic(told)
    assert told["error"]["type"] == "invalid_request_error"
    assert told["error"]["id_slot"] == 4096
    assert told["request_id"] == "r1"
    theirs = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    assert MESSAGES.engine_error_body(529, theirs, "r1") is theirs


def test_errors_as_the_last_events_of_a_stream() -> None:
    pretty = json.dumps(BUSY.build_envelope("r").model_dump(), indent=1).encode()
    for dialect in (CHAT, COMPLETIONS, JSON_DIALECT):
        first, done, end = dialect.error_as_events(pretty).split(b"\n\n")
        assert body(first.removeprefix(b"data: ")) == body(pretty)
        assert (done, end) == (b"data: [DONE]", b"")
    assert NATIVE.error_as_events(pretty).count(b"\n") == 2
    assert body(NATIVE.error_as_events(pretty).removeprefix(b"data: ")) == body(pretty)
    name, data, *rest = RESPONSES_VIA_CHAT.error_as_events(pretty).split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b"data: [DONE]", b"", b""])
    told = body(data.removeprefix(b"data: "))
    openai = {"type": "error", "code": "queue_full", "message": "Full.", "param": None, "sequence_number": 0}
    assert told == {**openai, **body(pretty)}
    name, data, *rest = MESSAGES.error_as_events(MESSAGES.error_body(BUSY, "r")).split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    assert errors.is_anthropic(body(data.removeprefix(b"data: ")))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 400}, 400),
        ({"code": "x", "status": 429}, 429),
        ({"type": "overloaded_error"}, 503),
        ({"type": "invalid_request_error"}, 400),
        ({"code": 200}, 500),
        ({"code": True}, 500),
        ({"type": []}, 500),
        ("text", 500),
    ],
)
def test_the_status_that_an_error_tells(error: Any, status: int) -> None:
    assert errors.status_of(error) == status


def test_half_a_surrogate_pair_can_be_written() -> None:
    assert json.loads(errors.encode_json({"x": "\ud83d"})) == {"x": "\ud83d"}
    assert json.loads(errors.encode_json("ü")) == "ü"
