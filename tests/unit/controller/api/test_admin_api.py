"""The controller's interface by itself: what its replies are, that every fault is one of them, and how well it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.errors import ERROR_CODES, ErrorBody, ErrorEnvelope
from contract.routing import GatewayReport
from controller.api.admin_journal import HEARTBEAT, _events
from controller.api.app import CLOSE_FAILED
from controller.api.requests import StopMiddleware
from controller.assembly import EXIT_RUNTIME_SILENT
from controller.journal import FOLLOWED_AT_ONCE, EventLog
from controller.round_events import NewEntry
from controller.runtimes.base import RuntimeUnavailableError
from tests.support.controller_app import Running, running
from tests.support.http_client import HttpClient, Reply
from tests.support.wait import until

STUB: dict[str, Any] = {"backend": "stub", "enabled": False}
MODELS = {"m": STUB, "m/logs": STUB, "org/a/logs": STUB | {"aliases": ["also/logs"]}}
ADMIN = "/v1/admin"
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
UNREADABLE = {
    "no UTF-8": b'{"replicas": "\xff"}',
    "too deep": b"[" * 100_000,
    "a number of 5000 digits": b'{"replicas": ' + b"9" * 5_000 + b"}",
}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, MODELS) as started:
        yield started


@pytest.fixture
async def client(site: Running) -> AsyncIterator[HttpClient]:
    async with aiohttp.ClientSession() as session:
        yield HttpClient(site.url, session)


def error_of(reply: Reply) -> ErrorBody:
    """The error, which is as the table has it."""
    assert reply.headers["content-type"] == JSON
    error = ErrorEnvelope.model_validate(reply.body).error
    entry = ERROR_CODES[error.code]
    assert (reply.status, error.status, error.type) == (entry.status, entry.status, entry.type)
    assert ("retry-after" in reply.headers) == (entry.retry is True)
    assert reply.headers.get("x-should-retry") == ("false" if entry.retry is False else None)
    return error


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/models", JSON),
        ("/models/m", JSON),
        ("/models/m/logs", TEXT),
        # Models whose names end like a route.
        ("/models/org/a/logs", JSON),
        ("/models/also/logs", JSON),
        ("/models/m/logs/logs", TEXT),
        ("/models/org/a/logs/logs", TEXT),
        ("/gpu-memory", JSON),
        ("/hosts", JSON),
        ("/plan", JSON),
        ("/drift", JSON),
        ("/history", JSON),
        ("/events?for_s=0.001", "text/event-stream; charset=utf-8"),
    ],
)
async def test_each_reply_has_its_content_type(client: HttpClient, path: str, kind: str) -> None:
    reply = await client.get(ADMIN + path)
    assert (reply.status, reply.headers["content-type"]) == (200, kind)
    if kind == JSON:
        assert reply.body
    if kind == JSON and path.endswith("/logs"):
        assert reply.body["name"] == "org/a/logs"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        *(("GET", path, "unknown_route") for path in ("/", "/v1/admin", "/v1/admin/", "/v1/admin/nothing", "/docs")),
        ("GET", "/v1/admin/models/", "schema_violation"),
        ("POST", "/v1/admin/hosts/b/drain", "unknown_host"),
        ("POST", "/v1/admin/hosts/b/forget", "schema_violation"),
        ("GET", "/v1/admin/models/m/load", "unknown_model"),  # read as a model of that name
        ("GET", "/v1/admin/models/other/logs", "unknown_model"),
        ("PUT", "/v1/admin/models", "method_not_allowed"),
        ("POST", "/v1/admin/models/m/logs", "method_not_allowed"),
        ("POST", "/v1/admin/plan", "schema_violation"),
    ],
)
async def test_a_wrong_request_is_refused_in_the_envelope(
    client: HttpClient, method: str, path: str, code: str
) -> None:
    body: dict[str, Any] | None = {} if path.endswith("plan") else None
    reply = await client.request(method, path, body, headers={"x-request-id": "req-7"})
    error = error_of(reply)
    assert (error.code, error.request_id) == (code, "req-7")
    assert reply.headers.get("allow") == ("GET" if code == "method_not_allowed" else None)


@pytest.mark.parametrize("path", ["/v1/admin/models/m/load", "/v1/admin/plan", "/internal/pause"])
@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_body_that_cannot_be_read_is_no_unknown_path(client: HttpClient, path: str, body: bytes) -> None:
    error = error_of(await client.post(path, body))
    assert (error.code, error.message) == ("schema_violation", "The body is not JSON that can be read.")


@pytest.mark.parametrize("path", ["/models?limit=1", "/history?modle=m", "/models/m/logs?line=5", "/drift?x="])
async def test_a_parameter_that_no_route_knows_is_refused_by_name(client: HttpClient, path: str) -> None:
    error = error_of(await client.get(ADMIN + path))
    assert (error.code, error.param) == ("schema_violation", path.partition("?")[2].partition("=")[0])
    if "modle" in path:
        assert "did you mean `model`?" in error.message


async def test_a_runtime_that_does_not_answer_is_reported_before_the_reply_begins(
    site: Running, client: HttpClient
) -> None:
    site.runtime.unavailable = "the daemon at https://user:pa55word@host does not answer"
    error = error_of(await client.get(f"{ADMIN}/models/m/logs?follow=true"))
    assert error.code == "controller_unavailable"
    assert "the daemon at https://***@host" in error.message


async def events(client: HttpClient, last: str | None = None, **query: str) -> list[dict[str, str]]:
    headers = {} if last is None else {"last-event-id": last}
    reply = await client.get(f"{ADMIN}/events", params={"for_s": "0.05"} | query, headers=headers)
    sent = reply.success.split("\n\n")
    fields = [dict(line.split(": ", 1) for line in each.splitlines() if line[0] != ":") for each in sent if each]
    return [each for each in fields if each]


async def test_a_gap_is_reported_only_where_something_is_missing(site: Running, client: HttpClient) -> None:
    [first, last] = site.controller.journal.record_entries(
        [NewEntry("gateway", "g", "one"), NewEntry("gateway", "g", "two")], 9e9
    )
    assert [each["event"] for each in await events(client, str(first.id))] == ["gateway"]
    assert await events(client, str(last.id)) == []
    for strange in (str(last.id + 1), "17", "9" * 16, "9" * 5_000):
        gap, *rest = await events(client, strange)
        assert (gap["event"], rest[-1]["id"]) == ("gap", str(last.id))
    assert [each["event"] for each in await events(client, "no id")] == []
    assert error_of(await client.get(f"{ADMIN}/events", params={"after": "9" * 5_000})).code == "schema_violation"
    assert (await events(client, after="0"))[-1]["id"] == str(last.id)


async def test_events_and_history_go_by_aliases_too(site: Running, client: HttpClient) -> None:
    site.controller.journal.record_entries([NewEntry("failure", "engine", "boom", "org/a/logs")], 1_000.0)
    history = await client.get(f"{ADMIN}/history", params={"model": "also/logs"})
    assert [each["message"] for each in history.body["entries"]] == ["boom"]
    assert '"boom"' in str(await events(client, model="also/logs", after="0", for_s="0.2"))


async def test_events_that_nobody_asked_for_are_passed_over_without_an_empty_part(tmp_path: Path) -> None:
    journal = EventLog(tmp_path / "journal.db")
    others = [NewEntry("failure", "engine", "boom", "other")] * FOLLOWED_AT_ONCE
    *_, last = journal.record_entries([*others, NewEntry("failure", "engine", "crack", "m")], 1_000.0)
    stream = _events(journal, 0, "m", set(), None)
    expected = f"id: {last.id}\nevent: failure\ndata: {last.model_dump_json()}\n\n"
    async with asyncio.timeout(30):
        assert [await anext(stream), await anext(stream)] == [HEARTBEAT, expected.encode()]
    journal.close()


async def test_streams_and_waits_end_in_words_with_the_controller(site: Running, client: HttpClient) -> None:
    load = asyncio.ensure_future(_whole(client.post(f"{ADMIN}/models/m/load")))
    async with client.get(f"{ADMIN}/events") as stream, client.get(f"{ADMIN}/models/m/logs?follow=true") as lines:
        assert await stream.content.readuntil(b"\n\n") == b": ka\n\n"
        await until("the engine was started", lambda: site.runtime.replicas)
        ending = await client.post("/internal/shutdown", {"stop_engines": False})
        assert ending.result == (202, {"stop_engines": False})
        error = error_of(await load)
        assert error.code == "controller_unavailable"
        assert "stopping" in error.message
        # Complete, not broken off.
        assert (await stream.read()).endswith(b"}\n\n")
        assert await lines.read() == b""


async def _whole(pending: Any) -> Reply:
    reply: Reply = await pending
    return reply


@pytest.mark.parametrize(("path", "status"), [("/internal/shutdown", 202), ("/v1/admin/models", 503)])
async def test_the_call_that_ends_the_controller_is_answered_however_long_that_takes(path: str, status: int) -> None:
    ending, sent = asyncio.Event(), list[Any]()

    async def slow(_scope: Any, _receive: Any, send: Any) -> None:
        ending.set()
        for _ in range(10):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(message: Any) -> None:
        sent.append(message)

    async def wait() -> None:
        await ending.wait()

    await StopMiddleware(slow, wait)({"type": "http", "path": path}, None, send)  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == status


@pytest.mark.parametrize(
    ("load", "code", "param"),
    [
        ({"nobody": {}}, "unknown_model", "name"),
        ({"m": {"values": {"replicas": "x"}}}, "invalid_load_request", "replicas"),
        ({"m": {"values": {"replicas": 99}, "restart": True}}, "invalid_load_request", "replicas"),
        ({"m": {"values": {"nothing": 1}}}, "invalid_load_request", "nothing"),
        ({"m": {"restart": True}}, None, None),
    ],
)
async def test_a_dry_run_of_loads_is_refused_as_the_load_would_be(
    client: HttpClient, load: dict[str, Any], code: str | None, param: str | None
) -> None:
    reply = await client.post(f"{ADMIN}/plan", {"loads": load})
    if code is None:
        assert (reply.body["ok"], reply.body["changes"]) == (True, [])
    else:
        error = error_of(reply)
        assert (error.code, error.param) == (code, param)


async def test_a_runtime_that_hangs_for_long_makes_the_controller_unhealthy(
    site: Running, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def health() -> tuple[int, str, str | None]:
        reply = await client.get("/internal/health")
        return reply.status, reply.body["status"], reply.body.get("error")

    assert (await health())[:2] == (200, "ok")
    site.runtime.unavailable = "it hangs"
    site.controller.set_paused(True, actor="a test")  # wakes the loop
    await until("the observation fails", lambda: site.controller.get_status().observation_error == "it hangs")
    assert (await health())[0] == 200, "not yet"
    monkeypatch.setattr("controller.observe.health.UNHEALTHY_AFTER_S", 0.0)
    assert await health() == (503, "unhealthy", "it hangs")
    site.runtime.unavailable = None

    async def is_well() -> bool:
        return (await health())[0] == 200

    await until("the next observation is complete", is_well)
    assert site.controller.exit_code == 0


async def test_nobody_at_the_runtimes_address_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path, {}, docker_gone_s=0.05) as site:
        site.runtime.unavailable, site.runtime.is_gone = "nobody listens", True
        site.controller.set_paused(True, actor="a test")
        async with asyncio.timeout(30):
            await site.controller.wait_for_end()
        assert site.controller.exit_code == EXIT_RUNTIME_SILENT


async def test_a_link_ends_with_an_error_when_no_table_can_be_sent(
    site: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(after: object) -> None:
        raise ValueError("no table")

    monkeypatch.setattr(site.controller.hub, "wait_for_table", fail)
    report = GatewayReport(gateway_id="g1", stamp=None)
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{site.url}/internal/link") as link:
        await link.send_str(report.model_dump_json())
        message = await link.receive(timeout=10)
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, CLOSE_FAILED)
    assert "gateway g1 cannot be sent a table" in caplog.text
    assert "ValueError: no table" in caplog.text
    await until("the link has ended", lambda: site.controller.hub.connected_ids == [])


async def test_engines_that_cannot_be_ended_do_not_keep_the_rest_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended, closed = [], asyncio.Event()

    async def close() -> None:
        closed.set()

    async def stop(name: str, grace_s: float) -> None:
        if "-m-0" in name:
            raise RuntimeUnavailableError("it hangs")
        await asyncio.sleep(0)
        ended.append(name)

    async with running(tmp_path, {"m": {"backend": "stub", "replicas": 2}}) as site:
        await until("both run", lambda: len(site.runtime.replicas) == 2)
        monkeypatch.setattr(site.runtime, "stop_replica", stop)
        monkeypatch.setattr(site.runtime, "close", close)
        site.controller.shut_down(stop_engines=True)
    assert (len(ended), site.controller.exit_code) == (1, 1)
    assert closed.is_set()
    assert "not all engines could be stopped" in caplog.text


async def test_a_heartbeat_has_the_id_of_what_nobody_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.api.admin_journal.HEARTBEAT_S", 0.01)
    journal = EventLog(tmp_path / "journal.db")
    [last] = journal.record_entries([NewEntry("failure", "engine", "boom", "other")], 1_000.0)
    stream = _events(journal, 0, "m", set(), None)
    async with asyncio.timeout(30):
        beats = [await anext(stream) for _ in range(3)]
    assert beats == [HEARTBEAT, f"id: {last.id}\n".encode() + HEARTBEAT, HEARTBEAT]
