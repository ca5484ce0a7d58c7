"""Bodies and heads that are too large: refused as early as possible, in words that arrive, at the cost of little."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.queueing import key
from tests.support.raw_http import Answer, RawClient, chat_body, raw, request, spotless

MIB = 1024 * 1024
INFERENCE = ("/v1/chat/completions", "/v1/messages", "/tokenize")


def head(target: str, *lines: str) -> bytes:
    """A POST's head."""
    return "\r\n".join([f"POST {target} HTTP/1.1", "host: localhost", *lines, "", ""]).encode("latin-1")


async def send_for_ever(client: RawClient, part: bytes) -> None:
    """Until the connection is gone, or the test is."""
    while not client.ended:
        await client.send(part)
        await asyncio.sleep(0)


async def answer_while_sending(client: RawClient, part: bytes) -> Answer:
    """The only answer of a connection that the gateway ends while its client goes on sending."""
    sending = asyncio.create_task(send_for_ever(client, part))
    answers = await client.to_the_end()
    sending.cancel()
    assert len(answers) == 1, client.received
    assert answers[0].whole
    return answers[0]


@pytest.mark.parametrize("target", [*INFERENCE, "/v1/admin/plan"])
async def test_an_announced_body_is_refused_before_it_is_sent(target: str) -> None:
    async with gateway_harness(max_body_mib=1) as gateway:
        await gateway.publish(route("m"))
        for more in ((), ("expect: 100-continue",)):
            async with raw(gateway) as client:
                client.write(head(target, f"content-length: {MIB + 1}", *more))
                answer = await client.answer()
                assert (answer.status, answer.error["code"]) == (413, "body_too_large")
                assert not client.interim, "its body was not asked for"
        await spotless(gateway)


@pytest.mark.parametrize("target", ["/models", "/models/load", "/v1/models/m/benchmark"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "' + b"x" * MIB + b'"}', 413, "body_too_large"),
        (b'{"model": "\xff"}', 400, "invalid_json"),
        (b"[" * 50_000, 400, "invalid_json"),
        (b'{"model": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
    ],
    ids=["large", "not-utf-8", "deep", "long-number"],
)
async def test_a_body_that_the_framework_reads_is_refused_by_its_own_code(
    target: str, body: bytes, status: int, code: str
) -> None:
    async with gateway_harness(max_body_mib=1) as gateway:
        await gateway.publish(route("m"))
        reply = await gateway.request("POST", target, headers={"content-type": "application/json"}, data=body)
        assert (reply.status, reply.code) == (status, code)


@pytest.mark.parametrize("target", [*INFERENCE, "/v1/admin/plan", "/v1/nowhere", "/v1/models"])
@pytest.mark.parametrize("framing", ["content-length: 9999999999999", "transfer-encoding: chunked"])
async def test_an_answer_arrives_although_the_client_goes_on_sending(target: str, framing: str) -> None:
    part = b"10000\r\n" + b"x" * 65536 + b"\r\n" if "chunked" in framing else b"x" * 65536
    async with gateway_harness(max_body_mib=1) as gateway:
        await gateway.publish(route("m"))
        async with raw(gateway) as client:
            client.write(head(target, framing))
            answer = await answer_while_sending(client, part)
            assert answer.status == {"/v1/nowhere": 404, "/v1/models": 405}.get(target, 413), client.received
        await spotless(gateway)


async def test_a_body_is_asked_for_only_where_it_will_be_read() -> None:
    body = chat_body()
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]), keys=(key("alice", scopes=("inference", "admin")),))
        for target in ("/v1/chat/completions", "/v1/admin/plan"):
            expecting = (f"content-length: {len(body)}", "expect: 100-continue")
            async with raw(gateway) as client:
                client.write(head(target, *expecting, "authorization: Bearer secret-alice"))
                while not client.interim:
                    assert await client.read()
                assert not client.answers
                client.write(body)
                assert (await client.answer()).status == 200
            async with raw(gateway) as client:
                client.write(head(target, *expecting, "authorization: Bearer wrong") + request("GET", "/health"))
                answers = await client.to_the_end()
                assert [answer.status for answer in answers] == [401], "the rest may be a body or a request"
                assert answers[0]["connection"] == "close"
                assert not client.interim
        await spotless(gateway)


def heads_too_large() -> dict[str, bytes]:
    """Heads over 32 KiB."""
    line = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    return {
        "one long header": f"{line}x-a: {'b' * 40_000}\r\n\r\n".encode(),
        "one long name": f"{line}{'a' * 40_000}: b\r\n\r\n".encode(),
        "many small ones": (line + "a: b\r\n" * 7000 + "\r\n").encode(),
        "a long target": request("GET", "/" + "a" * 40_000),
        "a long query": request("GET", "/v1/models?" + "a" * 40_000),
        "no end": f"{line}x-a: {'b' * 200_000}".encode(),
        "a long method": b"A" * 40_000,
        "blank lines": b"\r\n" * 20_000,
    }


@pytest.mark.parametrize("name", list(heads_too_large()))
async def test_a_head_over_the_limit_is_refused(name: str) -> None:
    sent = heads_too_large()[name]
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        trickled = [sent[at : at + 900] for at in range(0, len(sent), 900)]
        for cut in ([sent], trickled, [request("GET", "/v1/models"), *trickled]):
            async with raw(gateway) as client:
                await client.send(*cut)
                *before, last = await client.to_the_end()
                assert [answer.status for answer in before] == [200] * (len(cut) > len(trickled))
                assert last.status in ((400, 431) if name == "a long method" else (431,)), client.received
                assert last["connection"] == "close"
        assert not engine.requests
        await spotless(gateway)


async def test_a_head_just_under_the_limit_is_served_however_it_comes() -> None:
    fits = request("GET", "/v1/models", headers=["x-a: " + "b" * 32_000])
    async with gateway_harness() as gateway, raw(gateway) as client:
        await client.send(fits, fits[:20_000], fits[20_000:], fits + fits, fits[:1], fits[1:])
        for number in range(1, 7):
            if number <= 5:
                assert (await client.answer(number)).status == 200


@pytest.mark.parametrize("flood", [b"x-trailer: y\r\n" * 500, b"x" * 5000], ids=["many trailers", "one long trailer"])
@pytest.mark.parametrize("target", [*INFERENCE, "/v1/admin/plan"])
async def test_a_flood_of_trailers_is_refused(target: str, flood: bytes, gateway: GatewayHarness) -> None:
    await gateway.publish(route("m"))
    async with raw(gateway) as client:
        client.write(head(target, "transfer-encoding: chunked") + b"2\r\n{}\r\n0\r\n")
        answer = await answer_while_sending(client, flood)
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
    await spotless(gateway)


@pytest.mark.parametrize("target", [*INFERENCE, "/v1/admin/plan"])
async def test_a_flood_of_chunk_extensions_is_refused(target: str, gateway: GatewayHarness) -> None:
    await gateway.publish(route("m"))
    async with raw(gateway) as client:
        client.write(head(target, "transfer-encoding: chunked") + b"2;")
        answer = await answer_while_sending(client, b"a" * 5000)
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
    await spotless(gateway)


INJECTED = ("%0d%0ax-injected: 1", "\x80\xff", "a\tb", "\xe9" * 80, "x" * 5000, '"; x-injected=1', "\x85x-injected: 1")
NAMES = ("user-agent", "x-client-id", "x-request-id", "traceparent", "tracestate", "origin")


@pytest.mark.parametrize("name", NAMES)
async def test_nothing_that_a_client_says_of_itself_becomes_a_header(name: str) -> None:
    async with gateway_harness(cors_origins=("*",)) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        for value in INJECTED:
            said = [f"{name}: {value}"]
            async with raw(gateway) as client:
                client.write(request(headers=said) + request("GET", "/v1/models", headers=said))
                for answer in (await client.answer(1), await client.answer(2)):
                    assert answer.status == 200
                    assert not answer.all("x-injected")
                    assert answer["x-request-id"].startswith("req-")
                    assert all(told.isprintable() and len(told) <= 100 for told in answer.all("x-client-id"))
        assert len(engine.requests) == len(INJECTED)
        for seen in engine.requests:
            assert "x-injected" not in seen.headers
            assert all(value.isascii() and value.isprintable() for value in seen.headers.values()), seen.headers


async def test_nor_does_what_it_says_in_a_body() -> None:
    nasty: list[Any] = ["m\r\nx-injected: 1", "m\u0000", "\ud800", "m\u2028", "é" * 300, {"a": 1}, 7, None, ""]
    async with gateway_harness() as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        for name in nasty:
            for field in ("model", "service_tier", "stream", "thinking"):
                async with raw(gateway) as client:
                    client.write(request(body=json.dumps({"model": "m", "messages": [], field: name}).encode()))
                    answer = await client.answer()
                    assert not answer.all("x-injected")
                    assert answer.status != 500, (name, field, client.received)
        for seen in engine.requests:
            assert "x-injected" not in seen.headers
        await spotless(gateway)
