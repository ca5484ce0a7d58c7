"""The controller's interface by itself: what its answers are, and that every fault is one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.api.stopping import StopMiddleware
from controller.journal.entry import NewEntry
from controller.schema.errors import ERROR_CODES, ErrorBody, ErrorEnvelope
from tests.support.controller_app import Running, running
from tests.support.wait import until

STUB: dict[str, Any] = {"backend": "stub", "enabled": False}
MODELS = {"m": STUB, "m/logs": STUB, "org/a/logs": STUB | {"aliases": ["also/logs"]}}
JSON = {"content-type": "application/json"}
ADMIN = "/v1/admin"
UNREADABLE = {
    "no UTF-8": b'{"replicas": "\xff"}',
    "too deep": b"[" * 100_000,
    "a number of 5000 digits": b'{"replicas": ' + b"9" * 5_000 + b"}",
}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, MODELS) as found:
        yield found


@pytest.fixture
async def client(here: Running) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(here.url) as session:
        yield session


async def error_of(answer: aiohttp.ClientResponse) -> ErrorBody:
    """The error, which is told as the table has it."""
    assert answer.headers["content-type"] == "application/json"
    error = ErrorEnvelope.model_validate(await answer.json()).error
    entry = ERROR_CODES[error.code]
    assert (answer.status, error.status, error.type) == (entry.status, entry.status, entry.type)
    assert ("retry-after" in answer.headers) == (entry.retry is True)
    assert answer.headers.get("x-should-retry") == ("false" if entry.retry is False else None)
    return error


async def code_of(client: aiohttp.ClientSession, method: str, path: str, **more: Any) -> str:
    """The code of a request that is refused."""
    async with client.request(method, path, **more) as answer:
        return (await error_of(answer)).code


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/models", "application/json"),
        ("/models/m", "application/json"),
        ("/models/m/logs", "text/plain; charset=utf-8"),
        ("/gpu-memory", "application/json"),
        ("/plan", "application/json"),
        ("/drift", "application/json"),
        ("/history", "application/json"),
        ("/events?for_s=0.001", "text/event-stream; charset=utf-8"),
    ],
)
async def test_each_answer_has_its_content_type(client: aiohttp.ClientSession, path: str, kind: str) -> None:
    async with client.get(ADMIN + path) as answer:
        assert (answer.status, answer.headers["content-type"]) == (200, kind)
        if kind == "application/json":
            assert await answer.json()


@pytest.mark.parametrize("path", ["/", "/v1/admin", "/v1/admin/", "/v1/admin/nothing", "/v1/admin/models/", "/docs"])
async def test_an_unknown_path_is_told_in_the_envelope(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(path, headers={"x-request-id": "req-7"}) as answer:
        error = await error_of(answer)
        expected = ("unknown_model", "schema_violation") if path.endswith("models/") else ("unknown_route",)
        assert error.code in expected
        assert error.request_id == "req-7"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", "/models", "GET"), ("POST", "/models/m/logs", "GET"), ("GET", "/models/m/load", None)],
)
async def test_another_method_is_told_with_those_that_there_are(
    client: aiohttp.ClientSession, method: str, path: str, allowed: str | None
) -> None:
    async with client.request(method, ADMIN + path) as answer:
        if allowed is None:
            # Read as a model of that name.
            assert (await error_of(answer)).code == "unknown_model"
        else:
            assert (await error_of(answer)).code == "method_not_allowed"
            assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/v1/admin/models/m/load", "/v1/admin/plan", "/internal/pause"])
@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_body_that_cannot_be_read_is_no_unknown_path(
    client: aiohttp.ClientSession, path: str, body: bytes
) -> None:
    async with client.post(path, data=body, headers=JSON) as answer:
        error = await error_of(answer)
        assert (error.code, error.message) == ("schema_violation", "The body is not JSON that can be read.")


async def test_a_runtime_that_does_not_answer_is_told_before_the_answer_begins(
    here: Running, client: aiohttp.ClientSession
) -> None:
    here.runtime.unavailable = "the daemon at https://user:pa55word@host does not answer"
    async with client.get(f"{ADMIN}/models/m/logs?follow=true") as answer:
        error = await error_of(answer)
    assert error.code == "controller_unavailable"
    assert "the daemon at https://***@host" in error.message


async def test_a_model_whose_name_ends_like_a_route_has_a_row(client: aiohttp.ClientSession) -> None:
    for path, name in (("org/a/logs", "org/a/logs"), ("also/logs", "org/a/logs")):
        async with client.get(f"{ADMIN}/models/{path}") as answer:
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
            assert (await answer.json())["name"] == name
    for path in ("m/logs", "m/logs/logs", "org/a/logs/logs"):
        async with client.get(f"{ADMIN}/models/{path}") as answer:
            assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert await code_of(client, "GET", f"{ADMIN}/models/other/logs") == "unknown_model"


async def events(client: aiohttp.ClientSession, last: str | None = None, **query: str) -> list[dict[str, str]]:
    """What is told within a moment."""
    headers = {} if last is None else {"last-event-id": last}
    async with client.get(f"{ADMIN}/events", params=query | {"for_s": "0.05"}, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        told = (await answer.text()).split("\n\n")
    fields = [dict(line.split(": ", 1) for line in each.splitlines() if line[0] != ":") for each in told if each]
    return [each for each in fields if each]


async def test_a_gap_is_told_only_where_something_is_missing(here: Running, client: aiohttp.ClientSession) -> None:
    [first, last] = here.controller.journal.record_entries(
        [NewEntry("gateway", "g", "one"), NewEntry("gateway", "g", "two")], 9e9
    )
    assert [each["event"] for each in await events(client, str(first.id))] == ["gateway"]
    assert await events(client, str(last.id)) == []
    for strange in (str(last.id + 1), "17", "9" * 16, "9" * 5_000):
        gap, *rest = await events(client, strange)
        assert (gap["event"], rest[-1]["id"]) == ("gap", str(last.id))
    assert [each["event"] for each in await events(client, "no id")] == []
    assert await code_of(client, "GET", f"{ADMIN}/events", params={"after": "9" * 5_000}) == "schema_violation"
    assert (await events(client, after="0"))[-1]["id"] == str(last.id)


async def test_streams_and_waits_end_in_words_with_the_controller(here: Running, client: aiohttp.ClientSession) -> None:
    stream = await client.get(f"{ADMIN}/events")
    assert await stream.content.readuntil(b"\n\n") == b": ka\n\n"
    lines = await client.get(f"{ADMIN}/models/m/logs?follow=true")
    load = asyncio.create_task(client.post(f"{ADMIN}/models/m/load"))
    await until("the engine was started", lambda: here.runtime.replicas)
    async with client.post("/internal/shutdown", json={"stop_engines": False}) as answer:
        assert (answer.status, await answer.json()) == (202, {"stop_engines": False})
    async with stream, lines, await load as waited:
        assert (await error_of(waited)).code == "controller_unavailable"
        assert "stopping" in (await waited.json())["error"]["message"]
        # Complete, not broken off.
        assert (await stream.read()).endswith(b"}\n\n")
        assert await lines.read() == b""


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

    async def receive() -> Any:
        raise AssertionError

    async def wait() -> None:
        await ending.wait()

    await StopMiddleware(slow, wait)({"type": "http", "path": path}, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == status


@pytest.mark.parametrize("path", ["/models?limit=1", "/history?modle=m", "/models/m/logs?line=5", "/drift?x="])
async def test_a_parameter_that_no_route_knows_is_refused_by_name(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(ADMIN + path) as answer:
        error = await error_of(answer)
    assert (error.code, error.param) == ("schema_violation", path.partition("?")[2].partition("=")[0])
    if "modle" in path:
        assert "did you mean `model`?" in error.message


async def test_events_and_history_go_by_aliases_too(client: aiohttp.ClientSession, here: Running) -> None:
    entry = NewEntry("failure", "engine", "boom", "org/a/logs")
    here.controller.journal.record_entries([entry], 1_000.0)
    async with client.get(f"{ADMIN}/history", params={"model": "also/logs"}) as answer:
        assert [each["message"] for each in (await answer.json())["entries"]] == ["boom"]
    params = {"model": "also/logs", "after": "0", "for_s": "0.2"}
    async with client.get(f"{ADMIN}/events", params=params) as answer:
        assert '"boom"' in await answer.text()


async def test_a_dry_run_of_loads_is_refused_as_the_load_would_be(client: aiohttp.ClientSession) -> None:
    for load, code, param in (
        ({"nobody": {}}, "unknown_model", "name"),
        ({"m": {"values": {"replicas": "x"}}}, "invalid_load_request", "replicas"),
        ({"m": {"values": {"replicas": 99}, "restart": True}}, "invalid_load_request", "replicas"),
        ({"m": {"values": {"nothing": 1}}}, "invalid_load_request", "nothing"),
    ):
        async with client.post(f"{ADMIN}/plan", json={"loads": load}) as answer:
            error = await error_of(answer)
            assert (error.code, error.param) == (code, param)
    async with client.post(f"{ADMIN}/plan", json={"loads": {"m": {"restart": True}}}) as answer:
        told = await answer.json()
        assert (told["ok"], told["changes"]) == (True, [])
    async with client.post(f"{ADMIN}/plan", json={}) as answer:
        assert (await error_of(answer)).code == "schema_violation"
