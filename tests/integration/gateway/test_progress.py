"""Streams with `X-Progress`: headers at once, and comments on all that the request waits for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from contract.routing import ModelRoute
from contract.status import ModelState
from tests.fakes.fake_controller import route
from tests.fakes.fake_holding_engine import EVENTS, HoldingEngine, holding
from tests.fakes.fake_scripted_engine import Script, scripted
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness, until
from tests.fakes.mock_engine import MockEngine
from tests.support.http_client import PendingReply
from tests.support.resumed_streams import CHAT, FAMILIES, is_told, read_again

ASKED = {"X-Progress": "true"}
NATIVE = "/completion"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
PROGRESS = b": progress "


def start(
    gateway: GatewayHarness, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any
) -> PendingReply:
    asked = {"prompt": "hello"} if path == NATIVE else FAMILIES[path]
    body = {"model": "m", **asked, "stream": True, **fields}
    return gateway.post(path, body, headers=ASKED if headers is None else headers)


async def read(answer: aiohttp.ClientResponse) -> Any:
    """What the next part of the stream tells, which must be a comment on the progress."""
    part = await answer.content.readuntil(b"\n\n")
    assert part.startswith(PROGRESS), part
    return json.loads(part.removeprefix(PROGRESS))


async def read_until(answer: aiohttp.ClientResponse, stage: str) -> Any:
    """The first that the stream tells of this stage, from here on."""
    while (line := await read(answer))["stage"] != stage:
        pass
    return line


def split_comments(stream: bytes) -> tuple[list[Any], bytes]:
    """What the comments of a stream tell, and the stream without them."""
    parts = [part + b"\n\n" for part in stream.split(b"\n\n")[:-1]]
    comments = [json.loads(part.removeprefix(PROGRESS)) for part in parts if part.startswith(PROGRESS)]
    return comments, b"".join(part for part in parts if not part.startswith(PROGRESS))


def unloaded(state: ModelState = ModelState.UNLOADED, **fields: Any) -> ModelRoute:
    """The model before it is there."""
    return route("m", state=state, autoload=True, **fields)


@contextlib.asynccontextmanager
async def busy() -> AsyncIterator[tuple[GatewayHarness, HoldingEngine, asyncio.Task[Any]]]:
    """A model with one slot, which the request `first` has."""
    async with gateway_harness() as gateway, holding() as engine:
        await gateway.publish(route("m", [engine.url], target_inflight=1))
        first = asyncio.create_task(start(gateway, headers={}, tag="first").__aenter__())
        await until(lambda: "first" in engine.inside)
        yield gateway, engine, first
        engine.release_all()
        (await first).close()


async def test_the_place_in_the_queue_falls_as_others_finish() -> None:
    async with (
        busy() as (gateway, engine, _),
        start(gateway, tag="second") as second,
        start(gateway, tag="third") as third,
    ):
        assert [each.status for each in (second, third)] == [200, 200]
        assert [each.headers["x-queue-position"] for each in (second, third)] == ["2", "3"]
        assert await read(third) == {"stage": "queue", "model": "m", "queue_position": 3, "queue_depth": 3}
        assert (await read(second))["queue_position"] == 2
        engine.release("first")
        assert await read_until(second, "prefill") == {"stage": "prefill", "model": "m"}
        line = await read(third)
        assert (line["stage"], line["queue_position"], line["queue_depth"]) == ("queue", 2, 2)
        assert line["estimated_wait_ms"] >= 0
        await until(lambda: "second" in engine.inside)
        engine.release("second")
        assert await read_until(third, "prefill") == {"stage": "prefill", "model": "m"}
        engine.release_all()
        assert [await second.read(), await third.read()] == [EVENTS, EVENTS]
        board = gateway.services.progress
        await until(lambda: not board.tellers and not board.queued, "nothing is left")


async def test_a_client_that_leaves_the_queue_is_forgotten_and_the_next_moves_up() -> None:
    async with busy() as (gateway, _, _), start(gateway, tag="second") as second, start(gateway, tag="third") as third:
        assert (await read(third))["queue_position"] == 3
        second.close()
        assert (await read(third))["queue_position"] == 2


async def test_a_queue_that_is_full_keeps_its_status() -> None:
    async with busy() as (gateway, engine, _):
        await gateway.publish(route("m", [engine.url], target_inflight=1, queue_limit=0))
        assert (await start(gateway)).refusal == (429, "queue_full")


async def test_the_stages_of_a_load(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(unloaded())
    place = {"queue_position": 2, "queue_depth": 2}
    async with start(gateway) as response:
        assert (response.status, response.headers["x-queue-position"]) == (200, "2")
        assert await read(response) == {"stage": "load", "model": "m", "state": "unloaded", **place}
        await gateway.publish(unloaded(ModelState.LOADING))
        assert await read(response) == {"stage": "load", "model": "m", "state": "loading", **place}
        await gateway.publish(unloaded(ModelState.LOADING, last_error="nothing new"))
        await gateway.publish(unloaded(ModelState.LOADING, progress=0.25))
        assert await read(response) == {"stage": "load", "model": "m", "state": "loading", "progress": 0.25, **place}
        await gateway.publish(unloaded(ModelState.LOADING, progress=0.5))
        assert (await read(response))["progress"] == 0.5
        await gateway.publish(route("m", [engine.url], autoload=True))
        assert await read(response) == {"stage": "prefill", "model": "m"}
        rest = await response.read()
    assert rest.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_both_headers_tell_each_in_its_form(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(unloaded())
    async with start(gateway, headers={**ASKED, "X-Load-Progress": "true"}) as response:
        assert await response.content.readuntil(b"\n\n") == b': load-progress {"model":"m","state":"unloaded"}\n\n'
        assert (await read(response))["stage"] == "load"
        await gateway.publish(route("m", [engine.url], autoload=True))
        assert await read(response) == {"stage": "prefill", "model": "m"}


async def test_what_the_engine_refuses_is_an_event_too(gateway: GatewayHarness, engine: MockEngine) -> None:
    async with start(gateway, fault="bad_request") as response:
        assert (response.status, await read(response)) == (200, {"stage": "prefill", "model": "m"})
        rest = await response.read()
    assert b"too hot" in rest
    assert is_told("engine_error", rest), rest


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_who_does_not_ask_gets_the_same_bytes_as_ever(path: str) -> None:
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        headers: tuple[dict[str, str], ...] = ({}, {"X-Progress": "false"}, ASKED)
        bodies = [(await start(gateway, path, each)).content for each in headers]
        assert bodies[0] == bodies[1]
        assert b": progress" not in bodies[0]
        assert bodies[2] == b': progress {"stage":"prefill","model":"m"}\n\n' + bodies[0]
        assert len({request.raw for request in engine.requests}) == 1


async def test_a_blocking_request_is_told_nothing(gateway: GatewayHarness, engine: MockEngine) -> None:
    assert "choices" in (await start(gateway, stream=False)).body


def prefilling(path: str, processed: int | None) -> bytes:
    """An event of llama-server's at this API."""
    if path == NATIVE:
        fields: dict[str, Any] = {"index": 0, "content": "", "stop": False}
    else:
        is_chat = path == CHAT
        part = {"delta": {"role": "assistant", "content": None}} if is_chat else {"text": ""}
        fields = {"id": "c-1", "choices": [{"index": 0, "finish_reason": None, **part}]}
    if processed is not None:
        fields["prompt_progress"] = {"total": 1000, "cache": 100, "processed": processed, "time_ms": 3}
    return b"data: %b\n\n" % json.dumps(fields).encode()


def answering(path: str) -> bytes:
    if path == NATIVE:
        return b'data: {"index":0,"content":"Hi","stop":false}\n\ndata: {"index":0,"content":"","stop":true}\n\n'
    part = b'"delta":{"content":"Hi"}' if path == CHAT else b'"text":"Hi"'
    end = b'"delta":{}' if path == CHAT else b'"text":""'
    return (
        b'data: {"id":"c-1","choices":[{"index":0,"finish_reason":null,%b}]}\n\n'
        b'data: {"id":"c-1","choices":[{"index":0,"finish_reason":"stop",%b}]}\n\ndata: [DONE]\n\n' % (part, end)
    )


APIS = ("/v1/chat/completions", "/v1/completions", "/completion")


@contextlib.asynccontextmanager
async def llama_server(path: str, *rest: bytes) -> AsyncIterator[tuple[GatewayHarness, Any]]:
    """A gateway with an engine that reads a prompt of 1000 tokens, and then sends `rest`."""
    pieces = (STREAM_HEAD, *(prefilling(path, done) for done in (100, 400, 700, 1000)), *rest)
    async with scripted(Script(pieces, "close")) as engine, gateway_harness() as gateway:
        await gateway.publish(route("m", [engine.url], apis=APIS).model_copy(update={"backend": "llama_server"}))
        yield gateway, engine


def body_of(request: bytes) -> Any:
    return json.loads(request.partition(b"\r\n\r\n")[2])


ENGINE_PATHS = dict.fromkeys(("/v1/responses", "/v1/messages"), CHAT)


@pytest.mark.parametrize("path", [*FAMILIES, NATIVE])
async def test_the_share_of_the_prompt_is_told_and_no_event_of_it_gets_to_the_client(path: str) -> None:
    asked_of = ENGINE_PATHS.get(path, path)
    async with llama_server(asked_of, answering(asked_of)) as (gateway, engine):
        comments, rest = split_comments((await start(gateway, path)).content)
        assert body_of(engine.requests[0])["return_progress"] is True
        assert b"prompt_progress" not in rest
        assert b"Hi" in rest
        first, *figures = comments
        assert first == {"stage": "prefill", "model": "m"}
        counts = {"prompt_tokens": 1000, "cached_tokens": 100}
        whole = {**first, "progress": 1.0, **counts, "processed_tokens": 1000}
        assert figures[0] == {**first, "progress": 0.1, **counts, "processed_tokens": 100}
        assert figures[-1] == whole
        assert [each["progress"] for each in figures] == sorted({each["progress"] for each in figures})


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", NATIVE])
async def test_a_client_that_asked_the_engine_itself_gets_its_events_unchanged(path: str) -> None:
    async with llama_server(path, answering(path)) as (gateway, engine):
        comments, rest = split_comments((await start(gateway, path, return_progress=True)).content)
        sent = b"".join(prefilling(path, done) for done in (100, 400, 700, 1000)) + answering(path)
        assert rest == sent
        assert comments[-1]["progress"] == 1.0
        assert len(engine.requests) == 1


async def test_without_the_header_the_engine_is_not_asked() -> None:
    async with llama_server(CHAT, answering(CHAT)) as (gateway, engine):
        assert "prompt_progress" in (await start(gateway, headers={})).text, "this engine tells unasked"
        assert "return_progress" not in body_of(engine.requests[0])


async def test_a_prompt_that_is_being_read_is_in_the_reports() -> None:
    async with (
        scripted(Script((STREAM_HEAD, prefilling(CHAT, 400)))) as engine,
        gateway_harness() as gateway,
    ):
        await gateway.publish(route("m", [engine.url]).model_copy(update={"backend": "llama_server"}))
        async with start(gateway):
            report = await gateway.controller.report_where(lambda report: bool(report.prefill))
            told = report.prefill["m"]
            assert (told.requests, told.processed, told.total) == (1, 400, 1000)
            engine.say(prefilling(CHAT, 1000))
            await gateway.controller.report_where(lambda report: not report.prefill and bool(report.inflight))
        async with start(gateway):
            pass
        await gateway.controller.report_where(lambda report: not report.prefill and not report.inflight)


async def test_an_attempt_that_fails_begins_the_prefill_again() -> None:
    async with gateway_harness() as gateway, engines(2) as (first, second):
        first.breaks_all = True
        await gateway.publish(route("m", [first.url, second.url]))
        comments, rest = split_comments((await start(gateway)).content)
        assert comments == [{"stage": "prefill", "model": "m"}]
        assert rest.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", FAMILIES)
async def test_comments_are_bytes_of_a_stream_that_can_be_read_again(path: str) -> None:
    asked_of = ENGINE_PATHS.get(path, path)
    async with llama_server(asked_of, answering(asked_of)) as (gateway, _):
        reply = await start(gateway, path, {**ASKED, "X-Conversation-Id": "conv-1"})
        assert reply.headers["x-stream-file"] == "kept"
        whole = reply.content
        assert split_comments(whole)[0][-1]["progress"] == 1.0
        for offset in (0, 20, len(whole)):
            read = await read_again(gateway, offset)
            assert (read.state, read.body) == ("done", whole[offset:])


async def test_what_was_decided_of_a_session_is_told_where_the_headers_are_sent_before() -> None:
    async with gateway_harness() as gateway, holding() as engine:
        model = route("m", [engine.url], target_inflight=1)
        await gateway.publish(model.model_copy(update={"session_cache": 4}))
        async with (
            start(gateway, tag="first", session_id="s-1") as first,
            start(gateway, tag="second", session_id="s-2") as second,
        ):
            assert first.headers["x-session"] == "new"
            assert await read(first) == {"stage": "prefill", "model": "m", "session": "new"}
            assert "x-session" not in second.headers
            engine.release_all()
            assert await read_until(second, "prefill") == {"stage": "prefill", "model": "m", "session": "new"}
