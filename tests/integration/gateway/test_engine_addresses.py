"""Errors of engines name no engine's address to clients, in whichever family and form they come."""

from __future__ import annotations

import json

import pytest

from controller.runtimes.naming import replica_name
from controller.schema.status import ModelState
from controller.state import ReplicaId
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import Script, script, scripted
from tests.fakes.gateway_harness import gateway_harness
from tests.support.api_families import FAMILIES, STREAMING, Family
from tests.support.gateway_rest import nothing_left

REPLICA = replica_name("prod", ReplicaId("m", 0, "0123456789abcdef", 3))
SECRETS = ("10.20.30.40", "gpu-host-7", REPLICA, "fd00::7", "8123")
SAID = f"out of cells: dial tcp 10.20.30.40:8123, http://gpu-host-7:8123/v1, gpu-host-7:8123, [fd00::7]:8123, {REPLICA}"
JSON = "application/json"


def refusal(body: bytes, kind: str = JSON) -> Script:
    """An engine's whole answer with status 500."""
    return script(
        b"HTTP/1.1 500 X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind.encode(), len(body)) + body
    )


def broken_stream(family: Family, event: bytes) -> Script:
    """An engine's stream that ends with an event of its own after the first one."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    events = family.events[0] + event
    return script(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))


def told_nothing(told: bytes) -> None:
    """No address, and the rest of the message."""
    assert not [secret for secret in SECRETS if secret in told.decode()], told
    assert b"out of cells" in told


ERROR = json.dumps({"error": {"message": SAID, "type": "server_error", "code": 500, "url": SAID}}).encode()
MESSAGES_ERROR = json.dumps({"type": "error", "error": {"type": "api_error", "message": SAID}}).encode()
ENVELOPE = json.dumps(
    {"error": {"message": SAID, "type": "t", "code": "engine_error", "status": 500, "actionable": True,
               "next_steps": [SAID], "param": None, "request_id": "r"}}
).encode()  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_an_error_answer(family: Family) -> None:
    bodies = (ERROR, MESSAGES_ERROR, ENVELOPE, SAID.encode(), json.dumps({"detail": SAID}).encode())
    async with scripted(*(refusal(body) for body in bodies)) as engine, gateway_harness() as gateway:
        await gateway.publish(family.route("m", engine.url))
        for body in bodies:
            async with gateway.post(family.path, family.body("m")) as answer:
                told = await answer.read()
                assert answer.status == 500, body
                family.error_in(told)
                told_nothing(told)
        await nothing_left(gateway)


@pytest.mark.parametrize("family", STREAMING, ids=str)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "gathered"])
async def test_an_error_event(family: Family, stream: bool) -> None:
    data = [b"event: error\ndata: %b\n\n" % error for error in (ERROR, MESSAGES_ERROR)]
    if family.speaks != "/v1/messages":
        old_form = json.dumps({"message": SAID, "code": 500}).encode()
        data += [b"data: %b\n\n" % ERROR, b"data: %b\n\n" % ENVELOPE, b"error: %b\n\n" % old_form]
    async with scripted(*(broken_stream(family, event) for event in data)) as engine, gateway_harness() as gateway:
        await gateway.publish(family.route("m", engine.url).model_copy(update={"notices_leaving": False}))
        for event in data:
            async with gateway.post(family.path, family.body("m", stream=stream)) as answer:
                told = await answer.read()
                assert answer.status == (200 if stream else 500), event
                (family.last_error if stream else family.error_in)(told)
                told_nothing(told)
        await nothing_left(gateway)


async def test_an_error_longer_than_the_buffer_is_cut_and_still_an_error() -> None:
    body = b'{"error":{"message":"' + SAID.encode() + b" " + b"x" * 3_000_000 + b'"}}'
    async with scripted(refusal(body)) as engine, gateway_harness(answer_buffer_mib=1) as gateway:
        await gateway.publish(route("m", [engine.url]))
        async with gateway.chat() as answer:
            told = await answer.read()
            assert answer.status == 500
            assert json.loads(told)["error"]["code"] == "engine_error"
            told_nothing(told)
        await nothing_left(gateway)


async def test_an_engine_that_cannot_be_reached_is_not_named() -> None:
    async with gateway_harness(connect_timeout_s=1) as gateway:
        made = route("m", ["http://127.0.0.1:1", "http://127.0.0.1:2"])
        endpoints = [each.model_copy(update={"replica": f"{REPLICA}{at}"}) for at, each in enumerate(made.endpoints)]
        await gateway.publish(made.model_copy(update={"endpoints": tuple(endpoints)}))
        for takes_slot in (True, False):
            path = "/v1/chat/completions" if takes_slot else "/v1/chat/completions/input_tokens"
            async with gateway.post(path, FAMILIES[0].body("m")) as answer:
                told = await answer.text()
                assert (answer.status, json.loads(told)["error"]["code"]) == (502, "engine_unreachable")
                assert REPLICA not in told
                assert "127.0.0.1" not in told


async def test_why_a_model_failed_names_no_address() -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(route("m", state=ModelState.FAILED, last_error=SAID))
        async with gateway.chat() as answer:
            told = await answer.read()
            assert answer.status == 503
            told_nothing(told)
