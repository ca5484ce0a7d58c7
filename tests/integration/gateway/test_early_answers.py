"""A peer that answers before it has read the whole request: its answer is passed on, by every forwarder."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from common.internal_server import ListeningServer, open_listener
from common.program_client import ProgramAddress, ProgramClient
from contract.admin import Capabilities
from gateway.upstream.connection import EngineConnection
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.broken_peers import DEADLINE_S, REFUSAL, EarlyPeer, Then, early_peer
from tests.support.campaign import campaign_count
from tests.support.retrieval_harness import retrieval_gateway

THEN: tuple[Then, ...] = ("keep", "half-close", "close")


@pytest.mark.parametrize("is_socket", [False, True])
@pytest.mark.parametrize("then", THEN)
async def test_a_client_of_programs_reads_the_answer(then: Then, is_socket: bool, tmp_path: Path) -> None:
    path = tmp_path / "s" if is_socket else None
    with early_peer(then, path) as peer:

        async def parts() -> AsyncIterator[bytes]:
            yield bytes(65536)
            assert peer.has_answered.wait(DEADLINE_S)  # blocks the event loop, so that nothing is read before
            for _ in range(100):
                yield bytes(65536)

        address = ProgramAddress.parse(f"unix:{path}" if is_socket else peer.url)
        async with (
            ProgramClient(address, DEADLINE_S) as client,
            await client.send_request("POST", "/v1/documents", {"content-length": str(101 * 65536)}, parts()) as answer,
        ):
            assert (answer.status, await answer.read_body()) == (413, REFUSAL)


async def test_retrievals_refusal_of_an_upload_is_passed_on(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-both-programs")
    with early_peer("close") as peer:
        async with gateway_harness(retrieval_url=peer.url, retrieval_token_file=token) as gateway:
            reply = await gateway.post("/v1/documents", b'{"text": "%b"}' % (b"x" * 4_000_000))
            assert reply.refusal == (413, "body_too_large")


async def test_the_controllers_refusal_is_passed_on() -> None:
    with early_peer("close") as peer:
        async with (
            gateway_harness() as gateway,
            ProgramClient(ProgramAddress.parse(peer.url), DEADLINE_S) as controller,
        ):
            gateway.app.forward._controller = controller
            reply = await gateway.post("/v1/admin/declarations/models/m", bytes(1_000_000))
            assert reply.refusal == (413, "body_too_large")


class _LateTransport:
    """Writes a second part of a body only after the peer's answer, and before anybody reads that."""

    def __init__(self, transport: Any, peer: EarlyPeer) -> None:
        self._transport = transport
        self._peer = peer
        self._parts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._parts += len(data) > 4096
        if self._parts == 2:
            assert self._peer.has_answered.wait(DEADLINE_S)
        self._transport.write(data)


@pytest.mark.parametrize("then", THEN)
async def test_an_engines_refusal_is_passed_on(then: Then, monkeypatch: pytest.MonkeyPatch) -> None:
    made = EngineConnection.connection_made
    with early_peer(then) as peer:

        def connection_made(connection: EngineConnection, transport: Any) -> None:
            made(connection, transport)
            connection._transport = _LateTransport(transport, peer)  # type: ignore[assignment]

        monkeypatch.setattr(EngineConnection, "connection_made", connection_made)
        async with gateway_harness() as gateway:
            await gateway.publish(route("m", [peer.url], capabilities=Capabilities(modalities=("text", "image"))))
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
            messages = [{"role": "user", "content": [{"type": "text", "text": "?"}, image]}]
            reply = await gateway.post("/v1/chat/completions", model="m", messages=messages)
            answer = reply.body
    assert reply.status == 413, answer
    assert "Too much." in json.dumps(answer)
    assert peer.requests == 1, "nobody asks again"


def _send_after_answer(port: int, path: str, size: int) -> bytes:
    """The answer to a request whose body goes on for as long as nobody minds."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
        client.sendall(head.encode() + bytes(100_000))
        answer = b""
        while not answer.endswith(b"}"):
            part = client.recv(65536)
            assert part, answer
            answer += part
        client.sendall(bytes(size - 100_000))
        while part := client.recv(65536):
            answer += part
        return answer


async def test_a_server_of_ours_reads_on_after_it_refused() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(REFUSAL)).encode())]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": REFUSAL})

    listener = open_listener(("127.0.0.1", 0))
    server = ListeningServer(refuse, ("127.0.0.1", 0), listener)
    try:
        answer = await asyncio.to_thread(_send_after_answer, listener.getsockname()[1], "/v1/x", 8_000_000)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(REFUSAL)
    finally:
        await server.close()


async def test_the_gateway_reads_on_after_it_refused(gateway: GatewayHarness) -> None:
    port = int(gateway.url.rpartition(":")[2])
    answer = await asyncio.to_thread(_send_after_answer, port, "/v1/admin/declarations/models/m", 8_000_000)
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_uploads_above_the_limit_are_all_told_so(tmp_path: Path) -> None:
    told = []
    async with retrieval_gateway(tmp_path) as (gateway, _):
        for number in range(campaign_count(6, 54)):
            form = aiohttp.FormData()
            form.add_field("file", b"x" * ((1 + number % 5) * 1024 * 1024 + 1), filename="x.txt")
            path = ("/v1/documents", "/v1/files")[number % 2]
            if path == "/v1/files":
                form.add_field("purpose", "assistants")
            told.append((await gateway.request("POST", path, data=form)).refusal)
    assert set(told) <= {(413, "document_too_large"), (413, "body_too_large"), (413, "file_too_large")}, told
