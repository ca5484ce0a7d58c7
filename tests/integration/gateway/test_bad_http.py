"""Malformed and hostile HTTP from clients, byte by byte, and bodies and heads that are too large: an answer with the
envelope or a closed connection, as early as possible, never a hang, never a request hidden in another, and nothing
left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.server.connection import AHEAD_BYTES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.admin import error_of
from tests.support.queueing import key
from tests.support.raw_http import Answer, RawClient, chat_body, raw, request, spotless
from tests.support.wait import until

BODY = chat_body()
SIZE = len(BODY)
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY)
ZIPPED = gzip.compress(BODY, mtime=0)
GZIPPED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ZIPPED), ZIPPED)
SMUGGLED = request("GET", "/v1/models/smuggled")
"""Follows bad requests: no answer to it may come."""


@contextlib.asynccontextmanager
async def one_model(**settings: Any) -> AsyncIterator[tuple[GatewayHarness, MockEngine]]:
    """A gateway with the model `m`, whose engine is `engine`. All that clients did there must be gone afterwards."""
    async with gateway_harness(**settings) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        yield gateway, engine
        async with raw(gateway) as client:
            client.write(request())
            assert (await client.answer()).status == 200, "the next client is served"
        await spotless(gateway)


def head(*lines: str, first: str = "POST /v1/chat/completions HTTP/1.1") -> bytes:
    return "\r\n".join([first, "host: localhost", *lines, "", ""]).encode("latin-1")


async def refused(gateway: GatewayHarness, sent: bytes, name: str) -> RawClient:
    """Send it; the one answer must be a refusal, after which the connection ends."""
    async with raw(gateway) as client:
        client.write(sent)
        answers = await client.to_the_end()
        assert len(answers) == 1, (name, client.received)
        assert 400 <= answers[0].status < 500, (name, client.received)
        assert answers[0].error["code"] in ("invalid_request", "headers_too_large"), name
        assert answers[0]["connection"] == "close", name
    return client


AMBIGUOUS = {
    "length and chunks": head(f"content-length: {SIZE}", "transfer-encoding: chunked") + CHUNKED,
    "chunks and length": head("transfer-encoding: chunked", f"content-length: {SIZE}") + CHUNKED,
    "chunks and no length": head("transfer-encoding: chunked", "content-length: 0") + CHUNKED,
    "two lengths": head(f"content-length: {SIZE}", f"content-length: {SIZE + 9}") + BODY,
    "the same length twice": head(f"content-length: {SIZE}", f"content-length: {SIZE}") + BODY,
    "a list of lengths": head(f"content-length: {SIZE}, {SIZE}") + BODY,
    "length with plus": head(f"content-length: +{SIZE}") + BODY,
    "length with minus": head(f"content-length: -{SIZE}") + BODY,
    "length with a space": head(f"content-length: {SIZE} 1") + BODY,
    "length in hex": head(f"content-length: 0x{SIZE:x}") + BODY,
    "length with underscore": head("content-length: 1_0") + BODY,
    "length without digits": head("content-length:") + BODY,
    "length beyond 64 bits": head("content-length: 18446744073709551617") + BODY,
    "length in other digits": head("content-length: \xb2") + BODY,
    "xchunked": head("transfer-encoding: xchunked") + CHUNKED,
    "gzip, chunked": head("transfer-encoding: gzip, chunked") + GZIPPED,
    "gzip,chunked without a blank": head("transfer-encoding: gzip,chunked") + CHUNKED,
    "gzip, and chunked in a line of its own": head("transfer-encoding: gzip", "transfer-encoding: chunked") + GZIPPED,
    "GZip, Chunked": head("Transfer-Encoding: GZip, Chunked") + GZIPPED,
    "identity, chunked": head("transfer-encoding: identity, chunked") + CHUNKED,
    "chunked twice in a line": head("transfer-encoding: chunked, chunked") + CHUNKED,
    "an empty coding, and chunked": head("transfer-encoding: , chunked") + CHUNKED,
    "chunked with a parameter": head("transfer-encoding: chunked;q=1") + CHUNKED,
    "coded, and a wish": head("transfer-encoding: gzip, chunked", "connection: upgrade", "upgrade: h2c") + GZIPPED,
    "coded, in HTTP/1.0": head("transfer-encoding: gzip, chunked", first="POST /rerank HTTP/1.0") + GZIPPED,
    "coded, for the framework": head("transfer-encoding: gzip, chunked", first="POST /v1/admin/plan HTTP/1.1")
    + GZIPPED,
    "chunked, identity": head("transfer-encoding: chunked, identity") + CHUNKED,
    "identity": head("transfer-encoding: identity") + CHUNKED,
    "chunked twice": head("transfer-encoding: chunked", "transfer-encoding: chunked") + CHUNKED,
    "chunked after a control character": head("transfer-encoding: \x0bchunked") + CHUNKED,
    "chunked in quotes": head('transfer-encoding: "chunked"') + CHUNKED,
    "space before the colon": head("transfer-encoding : chunked") + CHUNKED,
    "space before the name": head(" transfer-encoding: chunked") + CHUNKED,
    "folded line": head("transfer-encoding:", " chunked") + CHUNKED,
    "folded value": head("x-a: b", " c", f"content-length: {SIZE}") + BODY,
    "bare LFs": head(f"content-length: {SIZE}").replace(b"\r\n", b"\n") + BODY,
    "one bare LF": head(f"content-length: {SIZE}").replace(b"localhost\r\n", b"localhost\n") + BODY,
    "LF in a value": head("x-a: b\nx-b: c", f"content-length: {SIZE}") + BODY,
    "CR in a value": head("x-a: b\rx-b: c", f"content-length: {SIZE}") + BODY,
    "NUL in a value": head("x-a: b\0c", f"content-length: {SIZE}") + BODY,
    "NUL in a name": head("x\0a: b", f"content-length: {SIZE}") + BODY,
    "high byte in a name": head("x\xe4: b", f"content-length: {SIZE}") + BODY,
    "no colon": head("xa", f"content-length: {SIZE}") + BODY,
    "no name": head(": b", f"content-length: {SIZE}") + BODY,
    "chunk size overflows": head("transfer-encoding: chunked") + b"fffffffffffffffff\r\n" + BODY,
    "chunk size is no number": head("transfer-encoding: chunked") + b"zz\r\n" + BODY,
    "chunk size is negative": head("transfer-encoding: chunked") + b"-1\r\n" + BODY,
    "chunk size with 0x": head("transfer-encoding: chunked") + b"0x%x\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "chunk size and space": head("transfer-encoding: chunked") + b"%x \r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "chunk size is empty": head("transfer-encoding: chunked") + b"\r\n%b\r\n0\r\n\r\n" % BODY,
    "chunk longer than said": head("transfer-encoding: chunked") + b"%x\r\n%b\r\n0\r\n\r\n" % (SIZE - 1, BODY),
    "chunks with bare LFs": head("transfer-encoding: chunked") + b"%x\n%b\n0\n\n" % (SIZE, BODY),
    "LF in an extension": head("transfer-encoding: chunked") + b"%x;a\nb\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
    "trailer with a length": head("transfer-encoding: chunked") + CHUNKED[:-2] + b"content-length: 9\r\n\r\n",
    "trailer with chunks": head("transfer-encoding: chunked") + CHUNKED[:-2] + b"transfer-encoding: chunked\r\n\r\n",
}
NOT_HTTP_1 = {
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "CONNECT with a path": request("CONNECT", "/v1/chat/completions"),
    "authority": request("GET", "localhost:80"),
    "HTTP/0.9 without a version": b"GET /v1/models\r\n\r\n",
    "HTTP/0.9": request("GET", "/v1/models").replace(b"HTTP/1.1", b"HTTP/0.9"),
    "HTTP/2.0": request("GET", "/v1/models").replace(b"HTTP/1.1", b"HTTP/2.0"),
    "HTTP/1.2": request("GET", "/v1/models").replace(b"HTTP/1.1", b"HTTP/1.2"),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"x" * 50 + b"\r\n\r\n",
    "unknown method": request("BREW"),
    "lower-case method": request("post"),
    "high byte in the target": request("GET", "/v1/models/\xff"),
    "control character in the target": request("GET", "/v1/models/\x01"),
    "space in the target": request("GET", "/v1/models /m"),
}


@pytest.mark.parametrize("cases", [AMBIGUOUS, NOT_HTTP_1], ids=["ambiguous", "not HTTP/1"])
async def test_what_two_servers_could_read_in_two_ways_is_refused_and_hides_nothing(cases: dict[str, bytes]) -> None:
    async with one_model() as (gateway, engine):
        for name, sent in cases.items():
            await refused(gateway, sent + SMUGGLED, name)
        assert not engine.requests


async def test_a_transfer_coding_that_is_not_decoded_is_named() -> None:
    for coding in ("gzip, chunked", "deflate, chunked"):
        async with one_model() as (gateway, engine):
            refusal = await refused(gateway, head(f"transfer-encoding: {coding}") + GZIPPED + SMUGGLED, coding)
            assert coding in refusal.answers[0].error["message"]
            assert not engine.requests


async def test_chunked_in_any_case_is_read() -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        client.write(head("Transfer-Encoding:  ChunkeD") + CHUNKED + request("GET", "/v1/models"))
        assert [(await client.answer(number)).status for number in (1, 2)] == [200, 200], client.received
        assert [seen.raw for seen in engine.requests] == [BODY]


GZIP = "content-encoding: gzip"
LARGE = chat_body(messages=[{"role": "user", "content": " ".join(str(each) for each in range(100_000))}])
READABLE: dict[str, tuple[bytes, str]] = {
    "gzip": (ZIPPED, GZIP),
    "x-gzip in capitals": (ZIPPED, "Content-Encoding: X-GZIP"),
    "two members": (gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]), GZIP),
    "a large one": (gzip.compress(LARGE), GZIP),
    "JSON as it is, by mistake": (BODY, GZIP),
}
UNREADABLE: dict[str, tuple[bytes, str, int, str]] = {
    "cut": (ZIPPED[:-9], GZIP, 400, "its end is missing"),
    "damaged": (ZIPPED[:12] + b"\xff\xff" + ZIPPED[14:], GZIP, 400, "cannot be decompressed"),
    "a bomb": (gzip.compress(bytes(40 * 2**20)), GZIP, 413, "when it is decompressed"),
    "too large": (gzip.compress(json.dumps(list(range(400_000))).encode()), GZIP, 413, "larger than "),
    "of many members": (gzip.compress(b"") * 200, GZIP, 400, "more than 100 members"),
    "of another coding": (b"\x0b\x02\x80{}\x03", "content-encoding: br", 400, "Content-Encoding: br"),
    "coded twice": (gzip.compress(ZIPPED), "content-encoding: gzip, gzip", 400, "Content-Encoding: gzip, gzip"),
    "without its header": (ZIPPED, "x-a: b", 400, "The body is not UTF-8"),
}


async def test_gzip_bodies_are_read() -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        for number, (name, (body, header)) in enumerate(READABLE.items(), 1):
            client.write(request(body=body, headers=[header]))
            assert (await client.answer(number)).status == 200, name
            assert engine.requests[-1].raw == (LARGE if name == "a large one" else BODY), name
        for step in range(1, 4):  # however they are cut
            parts = [ZIPPED[start : start + step] for start in range(0, len(ZIPPED), step)]
            client.write(head("transfer-encoding: chunked", GZIP))
            client.write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n")
            assert (await client.answer(len(READABLE) + step)).status == 200
        client.write(request("POST", "/v1/admin/plan", ZIPPED, [GZIP]))
        await until("the controller is asked", lambda: gateway.controller.admin.requests)
        asked = gateway.controller.admin.requests[-1]
        assert (asked.body, "content-encoding" in asked.headers) == (BODY, False)


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/messages", "/v1/admin/plan"])
async def test_compressed_bodies_are_read_within_bounds(target: str) -> None:
    async with one_model(max_body_mib=2) as (gateway, engine):

        async def refuse(name: str, body: bytes, header: str, status: int, words: str) -> None:
            async with raw(gateway) as client:
                client.write(request("POST", target, body, [header]))
                answer = await client.answer()
                assert (answer.status, words in answer.error["message"]) == (status, True), (name, answer.error)

        # What has no header is the controller's to read.
        cases = {
            name: each for name, each in UNREADABLE.items() if name != "without its header" or "admin" not in target
        }
        await asyncio.gather(*(refuse(name, *each) for name, each in cases.items()))
        assert not engine.requests


async def test_head_is_served_where_get_is(gateway: GatewayHarness) -> None:
    await gateway.publish(route("m"))
    paths = ("/v1/models", "/v1/models/m", "/openapi.json", "/v1/limits", "/props", "/v1/admin/history", "/health")
    for path in (*paths, "/models/sse", "/v1/models/"):
        async with gateway.request("HEAD", path) as head_answer:
            assert (head_answer.status, await head_answer.read()) == (200, b""), path
            kind = head_answer.headers["content-type"]
        if path != "/models/sse":
            async with gateway.get(path) as answer:
                assert (answer.status, answer.headers["content-type"]) == (200, kind), path
    refused = {"/v1/models/x": 404, "/v1/nothing": 404, "/v1/embeddings": 405, "/slots": 405, "/props?model=m": 405}
    for path, status in refused.items():
        async with gateway.request("HEAD", path) as head_answer:
            assert head_answer.status == status, path


async def test_spare_slashes_are_served_or_explained(gateway: GatewayHarness, engine: MockEngine) -> None:
    await gateway.publish(route("m", [engine.url]))
    for target in (
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat///completions//?x=/",
        "/chat/completions/",
    ):
        async with raw(gateway) as client:
            client.write(request(target=target))
            assert (await client.answer()).status == 200, target
    assert {seen.path for seen in engine.requests} == {"/v1/chat/completions"}
    for target in ("/v1/models/", "//v1/models", "/v1//models/m", "/v1/admin/models/"):
        assert (await gateway.get(target)).status == 200, target
    # A client whose id is empty must not delete all that there is.
    for method, target in (
        ("DELETE", "/v1/documents/"),
        ("DELETE", "/v1/conversations//"),
        ("GET", "/v1/v1/models"),
    ):
        reply = await gateway.request(method, target)
        assert reply.refusal[1] in ("unknown_route", "method_not_allowed"), target
    hint = error_of(await gateway.get("/v1/v1/models")).message
    assert "leave out one" in hint
    assert "Try /v1/nothing," in error_of(await gateway.get("/v1/nothing/")).message


async def test_a_prefix_of_a_proxy_is_taken_off(engine: MockEngine) -> None:
    async with gateway_harness(path_prefix="/llm/v2") as gateway:
        await gateway.publish(route("m", [engine.url]))
        for target in ("/llm/v2/v1/chat/completions", "/v1/chat/completions", "/llm/v2/chat/completions/"):
            assert (await gateway.request("POST", target, data=BODY)).status == 200, target
        assert (await gateway.request("POST", "/llm/v2x/v1/chat/completions", data=BODY)).status == 404
        assert {seen.path for seen in engine.requests} == {"/v1/chat/completions"}
        for target in ("/llm/v2/v1/models", "/llm/v2/health", "/llm/v2/", "/v1/models"):
            assert (await gateway.get(target)).status == 200, target
        for query in ("", "?x=1"):
            async with gateway.get(f"/llm/v2{query}", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["location"]) == (308, f"/llm/v2/{query}")
        async with gateway.get("/llm/v2/openapi.json") as answer:
            assert (await answer.json())["servers"] == [{"url": "/llm/v2"}]


async def test_an_http_1_0_request_ends_its_connection_whatever_its_framing() -> None:
    async with one_model() as (gateway, _):
        for lines in ((f"content-length: {SIZE}",), ("transfer-encoding: chunked",)):
            for more in ((), ("connection: keep-alive",)):
                async with raw(gateway) as client:
                    body = CHUNKED if "chunked" in lines[0] else BODY
                    client.write(head(*lines, *more, first="POST /v1/chat/completions HTTP/1.0") + body + SMUGGLED)
                    assert [answer.status for answer in await client.to_the_end()] == [200]


async def test_trailers_are_no_headers(gateway: GatewayHarness, engine: MockEngine) -> None:
    secret, valid = key("alice"), b"authorization: Bearer secret-alice\r\n"
    await gateway.publish(route("m", [engine.url]), keys=(secret,))
    for target in ("/v1/chat/completions", "/v1/admin/plan"):
        async with raw(gateway) as client:
            client.write(head("transfer-encoding: chunked", first=f"POST {target} HTTP/1.1"))
            client.write(CHUNKED[:-2] + valid + b"x-api-key: secret-alice\r\n\r\n")
            client.write(head(f"content-length: {SIZE}") + BODY)
            assert [(await client.answer(number)).status for number in (1, 2)] == [401, 401], client.received
    async with raw(gateway) as client:
        client.write(head("transfer-encoding: chunked", valid.decode().strip()))
        client.write(CHUNKED[:-2] + b"traceparent: mine\r\nhost: evil.example\r\n\r\n")
        assert (await client.answer()).status == 200
    assert "traceparent" not in engine.requests[0].headers


TARGETS = {
    200: [
        *("http://localhost/v1/chat/completions", "HTTP://LOCALHOST:80/v1/chat/completions"),
        *("//v1/chat/completions", "/v1/chat/completions/"),
        *("/v1/%63hat/completions", "/v1/chat%2fcompletions", "/v1/chat/completions?x=%00%0d%0a"),
    ],
    403: ["http://evil.example/v1/chat/completions"],
    405: ["http://localhost", "http://localhost?/v1/chat/completions"],
    404: [
        *("/v1/%2563hat/completions", "//localhost/v1/chat/completions"),
        *("/v1/x/../chat/completions", "/v1/x/%2e%2e/chat/completions", "/v1/./chat/completions"),
        *("/v1/chat/completions%00", "/v1/chat/completions%0a", "/v1/chat/completions;x"),
        *("/v1/chat/completions%3f", "/V1/chat/completions", "/health/../v1/chat/completions"),
        *("/metrics/..%2fv1/chat/completions", "/v1/%zz", "*"),
    ],
}


CODES = ("unknown_route", "forbidden_host", "method_not_allowed")


async def test_targets_in_other_forms_name_the_same_routes_or_none() -> None:
    async with one_model() as (gateway, engine):
        for status, target in [(status, target) for status, targets in TARGETS.items() for target in targets]:
            async with raw(gateway) as client:
                client.write(request(target=target))
                answer = await client.answer()
                assert answer.status == status, (target, client.received)
                assert status == 200 or answer.error["code"] in CODES, target
        assert {seen.path for seen in engine.requests} == {"/v1/chat/completions"}


UPGRADES = (
    ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAARAAAAAAAIAAAAA"),
    ("connection: upgrade", "upgrade: websocket", "sec-websocket-key: x", "sec-websocket-version: 13"),
    ("connection: keep-alive, upgrade", "upgrade: TLS/1.0"),
)


@pytest.mark.parametrize("wish", UPGRADES, ids=["h2c", "websocket", "tls"])
async def test_a_wish_for_another_protocol_is_ignored(wish: tuple[str, ...]) -> None:
    """Java's client sends one with each first request, body included."""
    chunked = head("transfer-encoding: chunked", *wish) + CHUNKED
    admin = request("POST", "/v1/admin/plan", b'{"a":1}', wish)
    many = request(headers=wish) + request("GET", "/v1/models", headers=wish) + chunked + admin
    async with one_model() as (gateway, engine):
        for sent in ([many], [many[at : at + 1] for at in range(len(many))]):
            async with raw(gateway) as client:
                await client.send(*sent)
                statuses = [(await client.answer(number)).status for number in (1, 2, 3, 4)]
                assert statuses == [200] * 4, client.received
        assert [seen.raw for seen in engine.requests] == [BODY] * 4
        assert [asked.body for asked in gateway.controller.admin.requests] == [b'{"a":1}'] * 2


async def test_requests_sent_without_waiting_are_answered_in_order() -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        client.write(request(body=chat_body(fault="hold")) + request("GET", "/v1/models") + request())
        client.write(request("GET", "/v1/nowhere") + request(body=b"{") + request("GET", "/v1/models/m"))
        await until("the first is inside", lambda: engine.running == 1)
        engine.release.set()
        statuses = [(await client.answer(number)).status for number in range(1, 7)]
        assert statuses == [200, 200, 200, 404, 400, 200]


@pytest.mark.parametrize(
    "tiny",
    [
        request("GET", "/v1/models/x"),
        request(body=b"{"),
        request("POST", "/v1/nowhere"),
        request(body=b"{", headers=["connection: upgrade", "upgrade: h2c"]),
        request("POST", "/v1/admin/plan", b"{}"),
    ],
    ids=["framework", "inference", "body", "upgrade", "admin"],
)
async def test_thousands_of_requests_in_one_write(tiny: bytes) -> None:
    async with one_model() as (gateway, _), raw(gateway) as client:
        writing = asyncio.create_task(client.send(tiny * 2000))
        first = (await client.answer()).status
        assert [(await client.answer(number)).status for number in range(1, 2001)] == [first] * 2000
        await writing


@pytest.mark.parametrize(
    "bad", [b"garbage\r\n\r\n", AMBIGUOUS["length and chunks"], AMBIGUOUS["chunk size is no number"]]
)
@pytest.mark.parametrize("first", [request(), request("GET", "/v1/models"), request("POST", "/v1/admin/plan", b"{}")])
async def test_what_was_asked_before_a_malformed_request_is_answered_first(first: bytes, bad: bytes) -> None:
    async with one_model() as (gateway, _):
        for cut in ([first + bad + SMUGGLED], [first, bad, SMUGGLED], [first * 3 + bad, SMUGGLED]):
            async with raw(gateway) as client:
                await client.send(*cut)
                *answered, last = await client.to_the_end()
                assert [answer.status for answer in answered] == [200] * cut[0].count(first), client.received
                assert (last.status, last.error["code"]) == (400, "invalid_request")


async def test_a_body_never_runs_into_the_request_before_it() -> None:
    long = request("POST", "/" + "a" * 40_000, b'{"injected": 1}')
    async with one_model() as (gateway, engine):
        async with raw(gateway) as client:
            client.write(request(body=chat_body(n=1)) + long + SMUGGLED)
            answers = await client.to_the_end()
            assert [answer.status for answer in answers] == [200, 431], client.received
        assert [seen.raw for seen in engine.requests] == [chat_body(n=1)]


async def test_a_client_that_asks_ahead_and_leaves_is_noticed() -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        client.write(request(body=chat_body(fault="hold")) + request() + request("GET", "/v1/models"))
        await until("the first is inside", lambda: engine.running == 1)
        client.close()
        await until("the engine's work is cancelled", lambda: engine.cancelled == 1)


async def test_what_is_asked_ahead_is_bounded() -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        client.write(request(body=chat_body(fault="hold")))
        await until("the first is inside", lambda: engine.running == 1)
        sending = asyncio.create_task(client.send(*[request("GET", "/v1/models")] * 100_000))
        assert gateway.server is not None
        connections: Any = gateway.server.server_state.connections
        (connection,) = connections
        await until("it stops to read", lambda: connection.flow.read_paused)
        read = len(connection.pipeline)
        assert 0 < read < 100_000
        assert read * len(request("GET", "/v1/models")) < AHEAD_BYTES + 512 * 1024
        sending.cancel()
        client.reset()
        engine.release.set()  # a client that leaves is noticed only as long as something is read


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "GET"])
async def test_other_methods_on_inference_routes(method: str) -> None:
    async with one_model() as (gateway, engine), raw(gateway) as client:
        client.write(request(method, "/v1/completions", body=BODY) + request("GET", "/v1/models"))
        if method == "HEAD":
            assert (await until_head(client)).startswith(b"HTTP/1.1 405 ")
        else:
            answer, after = await client.answer(1), await client.answer(2)
            assert (answer.status, answer["allow"], after.status) == (405, "POST", 200)
            assert answer.error["code"] == "method_not_allowed"
        assert not engine.requests


async def until_head(client: RawClient) -> bytes:
    """What came, when a head is whole: the parser would wait for the body that HEAD has not."""
    while b"\r\n\r\n" not in client.received:
        assert await client.read()
    return client.received


async def test_one_byte_at_a_time() -> None:
    async with one_model() as (gateway, engine):
        sent = [
            request(),
            head("transfer-encoding: chunked")
            + b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in BODY)
            + b"0\r\nx: y\r\n\r\n",
            request("POST", "/v1/admin/plan", b"{}"),
            request("GET", "/v1/models"),
        ]
        async with raw(gateway) as client:
            for number, whole in enumerate(sent, 1):
                await client.send(*(whole[at : at + 1] for at in range(len(whole))))
                assert (await client.answer(number)).status == 200
        assert [seen.raw for seen in engine.requests] == [BODY, BODY]


MIB = 1024 * 1024
INFERENCE = ("/v1/chat/completions", "/v1/messages", "/tokenize")


def head_of(target: str, *lines: str) -> bytes:
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
                client.write(head_of(target, f"content-length: {MIB + 1}", *more))
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
        reply = await gateway.post(target, body)
        assert (reply.status, reply.code) == (status, code)


@pytest.mark.parametrize("target", [*INFERENCE, "/v1/admin/plan", "/v1/nowhere", "/v1/models"])
@pytest.mark.parametrize("framing", ["content-length: 9999999999999", "transfer-encoding: chunked"])
async def test_an_answer_arrives_although_the_client_goes_on_sending(target: str, framing: str) -> None:
    part = b"10000\r\n" + b"x" * 65536 + b"\r\n" if "chunked" in framing else b"x" * 65536
    async with gateway_harness(max_body_mib=1) as gateway:
        await gateway.publish(route("m"))
        async with raw(gateway) as client:
            client.write(head_of(target, framing))
            answer = await answer_while_sending(client, part)
            assert answer.status == {"/v1/nowhere": 404, "/v1/models": 405}.get(target, 413), client.received
        await spotless(gateway)


async def test_a_body_is_asked_for_only_where_it_will_be_read(gateway: GatewayHarness, engine: MockEngine) -> None:
    body = chat_body()
    await gateway.publish(route("m", [engine.url]), keys=(key("alice", scopes=("inference", "admin")),))
    for target in ("/v1/chat/completions", "/v1/admin/plan"):
        expecting = (f"content-length: {len(body)}", "expect: 100-continue")
        async with raw(gateway) as client:
            client.write(head_of(target, *expecting, "authorization: Bearer secret-alice"))
            while not client.interim:
                assert await client.read()
            assert not client.answers
            client.write(body)
            assert (await client.answer()).status == 200
        async with raw(gateway) as client:
            client.write(head_of(target, *expecting, "authorization: Bearer wrong") + request("GET", "/health"))
            answers = await client.to_the_end()
            assert [answer.status for answer in answers] == [401], "the rest may be a body or a request"
            assert answers[0]["connection"] == "close"
            assert not client.interim
    await spotless(gateway)


def heads_too_large() -> dict[str, bytes]:
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
async def test_a_head_over_the_limit_is_refused(name: str, gateway: GatewayHarness, engine: MockEngine) -> None:
    sent = heads_too_large()[name]
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


async def test_a_head_just_under_the_limit_is_served_however_it_comes(gateway: GatewayHarness) -> None:
    fits = request("GET", "/v1/models", headers=["x-a: " + "b" * 32_000])
    async with raw(gateway) as client:
        await client.send(fits, fits[:20_000], fits[20_000:], fits + fits, fits[:1], fits[1:])
        for number in range(1, 7):
            if number <= 5:
                assert (await client.answer(number)).status == 200


FLOODS = {
    "many trailers": (b"2\r\n{}\r\n0\r\n", b"x-trailer: y\r\n" * 500),
    "one long trailer": (b"2\r\n{}\r\n0\r\n", b"x" * 5000),
    "chunk extensions": (b"2;", b"a" * 5000),
}


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("target", [*INFERENCE, "/v1/admin/plan"])
async def test_a_flood_of_trailers_or_chunk_extensions_is_refused(
    target: str, flood: str, gateway: GatewayHarness
) -> None:
    begin, part = FLOODS[flood]
    await gateway.publish(route("m"))
    async with raw(gateway) as client:
        client.write(head_of(target, "transfer-encoding: chunked") + begin)
        answer = await answer_while_sending(client, part)
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


async def test_nothing_that_a_client_says_in_a_body_becomes_a_header(
    gateway: GatewayHarness, engine: MockEngine
) -> None:
    nasty: list[Any] = ["m\r\nx-injected: 1", "m\u0000", "\ud800", "m\u2028", "é" * 300, {"a": 1}, 7, None, ""]
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
