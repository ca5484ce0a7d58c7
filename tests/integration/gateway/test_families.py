"""What every API family keeps to, in its own form, whether its engine speaks it or is spoken to in another: waiting
in the queue, heartbeats meanwhile, refusals, a client that leaves, and errors that name neither an engine's address
nor, but to those who may administer it, the server's paths."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from contract.status import ModelState
from controller.runtimes.base import replica_name
from controller.state import ReplicaId
from tests.fakes.fake_controller import route
from tests.fakes.fake_scripted_engine import Script, ScriptedEngine, script, scripted
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.api_families import FAMILIES, STREAMING, Family
from tests.support.gateway_rest import nothing_left
from tests.support.http_client import HttpClient
from tests.support.loop_clock import LoopClock, loop_clock
from tests.support.queueing import key
from tests.support.wait import until

__all__ = ["loop_clock"]


each_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
each_stream = pytest.mark.parametrize("family", STREAMING, ids=str)


def whole(family: Family) -> Script:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return script(head % len(family.whole) + family.whole)


def stream(family: Family) -> Script:
    events = b"".join(family.events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return script(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))


STALL = script(b"", "stall")


@contextlib.asynccontextmanager
async def one_slot(
    family: Family, *scripts: Script, **options: Any
) -> AsyncIterator[tuple[GatewayHarness, ScriptedEngine]]:
    """A gateway in front of an engine with one slot and these scripts; nothing may be left behind."""
    async with scripted(*scripts) as engine, gateway_harness(**options) as gateway:
        await gateway.publish(family.route("m", engine.url, target_inflight=1, queue_limit=1))
        yield gateway, engine
        await nothing_left(gateway)


async def send(gateway: GatewayHarness, family: Family, **fields: Any) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of one answer; on a connection of its own."""
    async with aiohttp.ClientSession() as client:
        reply = await HttpClient(gateway.url, client).post(family.path, family.body("m", **fields))
        return reply.status, reply.headers, reply.content


async def takes_the_slot(gateway: GatewayHarness, family: Family, engine: ScriptedEngine) -> asyncio.Task[Any]:
    """A request that the engine does not answer."""
    task = asyncio.create_task(send(gateway, family, stream=family.streams))
    await until("the engine has it", lambda: len(engine.requests) == 1)
    return task


async def waits(gateway: GatewayHarness, family: Family, **fields: Any) -> asyncio.Task[Any]:
    """A request that stands in the queue."""
    task = asyncio.create_task(send(gateway, family, **fields))

    async def stands() -> bool:
        return bool((await gateway.get("/health")).body["queue_depth"] == 1)

    await until("it waits", stands)
    return task


async def leaves(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@each_family
async def test_the_next_in_the_queue_gets_the_slot_of_a_client_that_leaves(family: Family) -> None:
    async with one_slot(family, STALL, whole(family)) as (gateway, engine):
        first = await takes_the_slot(gateway, family, engine)
        second = await waits(gateway, family)
        await leaves(first)
        status, headers, body = await second
        assert (status, headers["x-queue-position"], headers["x-queue-depth"]) == (200, "2", "2")
        assert (b"Hi" in body) is (b"Hi" in family.whole)
        assert len(engine.requests) == 2


@each_stream
async def test_a_stream_that_waits_gets_heartbeats_of_its_family_and_then_its_answer(
    family: Family, loop_clock: LoopClock
) -> None:
    async with one_slot(family, STALL, stream(family), heartbeat_s=5, hold_headers_s=5) as (gateway, engine):
        first = await takes_the_slot(gateway, family, engine)
        second = await waits(gateway, family, stream=True)
        await loop_clock.skip(15)
        await leaves(first)
        status, headers, body = await second
        assert (status, headers["x-queue-position"]) == (200, "2")
        assert body.startswith(family.heartbeat * 2)
        assert family.begins in body
        assert family.ends.search(body)
        assert b"error" not in body.replace(b'"error":null', b"")


@each_stream
async def test_a_client_that_leaves_in_the_middle_frees_the_engine(family: Family) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    begun = script(head + b"%x\r\n%b\r\n" % (len(family.events[0]), family.events[0]), "stall")
    async with one_slot(family, begun) as (gateway, engine):
        url, body = gateway.url + family.path, family.body("m", stream=True)
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as answer:
            assert (await answer.content.readany()).startswith(family.begins[:10])
            assert engine.peers
        await until("the engine's connection is closed", lambda: not engine.peers)


@each_family
async def test_a_full_queue_refuses_in_the_familys_form(family: Family) -> None:
    async with one_slot(family, STALL, whole(family)) as (gateway, engine):
        first = await takes_the_slot(gateway, family, engine)
        second = await waits(gateway, family)
        status, headers, body = await send(gateway, family, stream=family.streams)
        error = family.error_in(body)
        assert (status, error["code"], error["status"]) == (429, "queue_full", 429)
        assert int(headers["retry-after"]) >= 1
        await leaves(second)
        await leaves(first)


@each_stream
async def test_a_load_that_fails_while_a_stream_waits_ends_it_in_the_familys_form(
    family: Family, loop_clock: LoopClock
) -> None:
    async with gateway_harness(heartbeat_s=5, hold_headers_s=5) as gateway:
        wanted: dict[str, Any] = {"apis": (family.speaks,), "autoload": True}
        await gateway.publish(route("m", state=ModelState.LOADING, **wanted))
        task = await waits(gateway, family, stream=True)
        await loop_clock.skip(10)
        await gateway.publish(route("m", state=ModelState.FAILED, last_error="out of memory", **wanted))
        status, _, body = await task
        assert status == 200, "it was committed by its heartbeats"
        assert body.startswith(family.heartbeat)
        assert family.last_error(body)["code"] == "model_failed"
        await nothing_left(gateway)


@each_family
async def test_an_error_of_the_engine_keeps_its_status_and_message(family: Family) -> None:
    said = b'{"error":{"code":400,"message":"no such slot","type":"slot_error"}}'
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    async with one_slot(family, *[script(head % len(said) + said)] * 2) as (gateway, _):
        for streams in {False, family.streams}:
            status, _, body = await send(gateway, family, stream=streams)
            error = family.error_in(body)
            assert (status, error["message"], error["status"]) == (400, "no such slot", 400)


@each_stream
async def test_an_error_of_the_engine_in_a_stream_is_told_in_the_familys_form(family: Family) -> None:
    said = b'data: {"error":{"code":500,"message":"out of cells","type":"server_error"}}\n\n'
    if not family.is_translated and family.path == "/v1/messages":
        said = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"out of cells"}}\n\n'
    events = family.events[0] + said
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    async with one_slot(family, script(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))) as (gateway, _):
        status, headers, body = await send(gateway, family, stream=True)
        assert status == 200
        assert body.startswith(family.begins)
        assert family.last_error(body)["message"] == "out of cells"
        assert b'"request_id":"%b"' % headers["x-request-id"].encode() in body.replace(b'": "', b'":"')


REPLICA = replica_name("prod", ReplicaId("m", 0, "0123456789abcdef", 3))
SECRETS = ("10.20.30.40", "gpu-host-7", REPLICA, "fd00::7", "8123")
SAID = f"out of cells: dial tcp 10.20.30.40:8123, http://gpu-host-7:8123/v1, gpu-host-7:8123, [fd00::7]:8123, {REPLICA}"
JSON = "application/json"


def refusal(body: bytes, kind: str = JSON) -> Script:
    return script(
        b"HTTP/1.1 500 X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind.encode(), len(body)) + body
    )


def broken_stream(family: Family, event: bytes) -> Script:
    """An engine's stream that ends with an event of its own after the first one."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    events = family.events[0] + event
    return script(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))


def told_nothing(told: bytes) -> None:
    assert not [secret for secret in SECRETS if secret in told.decode()], told
    assert b"out of cells" in told


ERROR = json.dumps({"error": {"message": SAID, "type": "server_error", "code": 500, "url": SAID}}).encode()
MESSAGES_ERROR = json.dumps({"type": "error", "error": {"type": "api_error", "message": SAID}}).encode()
ENVELOPE = json.dumps(
    {"error": {"message": SAID, "type": "t", "code": "engine_error", "status": 500, "actionable": True,
               "next_steps": [SAID], "param": None, "request_id": "r"}}
).encode()  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_an_engines_error_answer_reaches_the_client(family: Family, gateway: GatewayHarness) -> None:
    bodies = (ERROR, MESSAGES_ERROR, ENVELOPE, SAID.encode(), json.dumps({"detail": SAID}).encode())
    async with scripted(*(refusal(body) for body in bodies)) as engine:
        await gateway.publish(family.route("m", engine.url))
        for body in bodies:
            reply = await gateway.post(family.path, family.body("m"))
            told = reply.content
            assert reply.status == 500, body
            family.error_in(told)
            told_nothing(told)
        await nothing_left(gateway)


@pytest.mark.parametrize("family", STREAMING, ids=str)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "gathered"])
async def test_an_engines_error_event_reaches_the_client(family: Family, stream: bool) -> None:
    data = [b"event: error\ndata: %b\n\n" % error for error in (ERROR, MESSAGES_ERROR)]
    if family.speaks != "/v1/messages":
        old_form = json.dumps({"message": SAID, "code": 500}).encode()
        data += [b"data: %b\n\n" % ERROR, b"data: %b\n\n" % ENVELOPE, b"error: %b\n\n" % old_form]
    async with scripted(*(broken_stream(family, event) for event in data)) as engine, gateway_harness() as gateway:
        await gateway.publish(family.route("m", engine.url).model_copy(update={"notices_leaving": False}))
        for event in data:
            reply = await gateway.post(family.path, family.body("m", stream=stream))
            told = reply.content
            assert reply.status == (200 if stream else 500), event
            (family.last_error if stream else family.error_in)(told)
            told_nothing(told)
        await nothing_left(gateway)


async def test_an_error_longer_than_the_buffer_is_cut_and_still_an_error() -> None:
    body = b'{"error":{"message":"' + SAID.encode() + b" " + b"x" * 3_000_000 + b'"}}'
    async with scripted(refusal(body)) as engine, gateway_harness(answer_buffer_mib=1) as gateway:
        await gateway.publish(route("m", [engine.url]))
        reply = await gateway.chat()
        told = reply.content
        assert reply.status == 500
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
            reply = await gateway.post(path, FAMILIES[0].body("m"))
            told = reply.text
            assert (reply.status, json.loads(told)["error"]["code"]) == (502, "engine_unreachable")
            assert REPLICA not in told
            assert "127.0.0.1" not in told


async def test_why_a_model_failed_names_no_address(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m", state=ModelState.FAILED, last_error=SAID))
    reply = await gateway.chat()
    told = reply.content
    assert reply.status == 503
    told_nothing(told)


SERVER_PATH = "/srv/of bob/models/private.gguf"
REASON = f"model: private.gguf is a symbolic link to '{SERVER_PATH}', which does not exist"
LOG = "srv main: unknown argument --mmproj-of-bob\nsrv main: cwd is srv/bob"
WHOLE = f"{REASON}. Last log lines:\n{LOG}"
FAILED = route("m", state=ModelState.FAILED, last_error=REASON, full_error=WHOLE)
WAITING = route("m", state=ModelState.LOADING, last_error=REASON, full_error=WHOLE, autoload=True)
OF_OLDER_CONTROLLER = route("m", state=ModelState.FAILED, last_error=WHOLE)
"""Its error has the log lines, too."""
USER, BOSS = "secret-user", "secret-boss"
KEYS = (key("user", scopes=("inference",)), key("boss", scopes=("inference", "admin")))
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "/v1/rerank": {"query": "Hi", "documents": ["Hi"]},
    "/tokenize": {"content": "Hi"},
}


async def read_refusal(gateway: GatewayHarness, path: str, key: str | None = None, **fields: Any) -> str:
    reply = await gateway.post(path, {"model": "m"} | REQUESTS[path] | fields, key=key)
    assert reply.status == 503
    return reply.text


def check_is_hidden(text: str) -> None:
    """The reason is told, and no part of the path and none of the engine's own words."""
    assert "which does not exist" in text
    assert "[path]" in text
    assert "/srv" not in text
    assert "bob" not in text
    assert "srv main" not in text


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_inference_key_is_told_the_reason_without_paths(
    path: str, stream: bool, gateway: GatewayHarness
) -> None:
    """And without the lines of the engine's log, which who may administer is told."""
    for failed in (FAILED, OF_OLDER_CONTROLLER):
        await gateway.publish(failed, keys=KEYS)
        check_is_hidden(await read_refusal(gateway, path, USER, stream=stream))
        assert WHOLE in json.loads(await read_refusal(gateway, path, BOSS, stream=stream))["error"]["message"]


async def test_why_a_model_that_was_waited_for_failed_names_no_address() -> None:
    async with gateway_harness(hold_headers_s=0.05) as gateway:
        for shown in (USER, BOSS):
            for stream in (False, True):
                await gateway.publish(WAITING, keys=KEYS)
                call = asyncio.ensure_future(gateway.chat(stream=stream, key=shown))
                await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
                await gateway.publish(FAILED, keys=KEYS)
                text = (await call).text
                assert "model_failed" in text
                if shown is USER:
                    check_is_hidden(text)
                else:
                    assert REASON in text
                    assert "srv main" in text
                await gateway.idle()


async def test_what_is_stored_for_a_tenant_holds_no_path_whoever_asked(gateway: GatewayHarness) -> None:
    await gateway.publish(WAITING, keys=KEYS)
    body = {"model": "m", "input": "Hi", "background": True}
    response_id = (await gateway.post("/v1/responses", body, key=BOSS)).body["id"]
    await gateway.controller.report_where(lambda report: report.queued == {"m": 1})
    await gateway.publish(FAILED, keys=KEYS)
    await gateway.idle()
    check_is_hidden((await gateway.get(f"/v1/responses/{response_id}", key=BOSS)).text)


@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        ({}, True),
        ({"open_admin": False}, False),
        ({"host": "0.0.0.0", "open": True}, False),
        ({"host": "0.0.0.0", "open": True, "open_admin": True}, True),
        ({"admin_host": ("127.0.0.2",)}, False),
    ],
)
async def test_without_keys_it_is_told_to_those_to_whom_administration_is_open(
    settings: dict[str, Any], is_shown: bool
) -> None:
    async with gateway_harness(**settings) as gateway:
        await gateway.publish(FAILED)
        text = await read_refusal(gateway, "/v1/chat/completions")
        if is_shown:
            assert REASON in text
        else:
            check_is_hidden(text)
