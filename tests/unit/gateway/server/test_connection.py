"""A client's connection that ends while its requests are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.large_body import LargeBody
from gateway.server.body_budget import BodyBudget
from gateway.server.call import ClientCall, Handler
from gateway.server.connection import LINGER_S, ClientConnection
from gateway.server.request_reader import ClientLimits

LIMITS = ClientLimits(max_header_bytes=1024, client_timeout_s=60.0, keep_alive_s=60.0)


class Wire(asyncio.Transport):
    """A transport that keeps what it is given. `breaks`: its first write fails, which closes it."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self._breaks = breaks
        self._is_closing = False
        self.did: list[str] = []

    def write(self, data: Any) -> None:
        self.did.append("write")
        self._is_closing = self._is_closing or self._breaks

    def write_eof(self) -> None:
        self.did.append("write_eof")

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        """Nothing is read but what the test gives."""

    resume_reading = pause_reading

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def get_write_buffer_size(self) -> int:
        return 0


class Refusing:
    """Serves /direct, without the framework: it answers before it has the body."""

    def open_request(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        return self._answer if path == b"/direct" else None

    def _answer(self, call: ClientCall) -> Handler:
        call.send_whole(401, b"", b"")
        return Silent()

    def __init__(self) -> None:
        self.body_budget = BodyBudget(1024)

    def find_websocket(self, path: bytes) -> None:
        return None

    def max_body_bytes(self) -> int:
        return 1024

    def next_request_id(self) -> str:
        raise AssertionError


class Silent:
    """Is told nothing: its answer was complete."""

    def take_body(self, body: bytes | LargeBody) -> None:
        raise AssertionError

    def fail_request(self, error: RoundhouseError) -> None:
        raise AssertionError

    def client_gone(self) -> None:
        raise AssertionError

    client_full = client_ready = client_gone


class App:
    """The framework's side: tells what a request heard until its client was gone."""

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = {}
        self.has_begun = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        heard = self.heard.setdefault(scope["path"], [])
        while "http.disconnect" not in heard:
            heard.append((await receive())["type"])
            self.has_begun.set()


def connected(wire: Wire, app: App) -> ClientConnection:
    config = Config(app, interface="asgi3", lifespan="off", ws="none", log_config=None)
    connection = ClientConnection(config, ServerState(), {}, direct=Refusing(), limits=LIMITS)
    connection.connection_made(wire)
    return connection


async def test_the_request_that_is_served_hears_of_the_end_while_another_waits_behind_it() -> None:
    app = App()
    connection = connected(Wire(), app)
    connection.data_received(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\nGET /second HTTP/1.1\r\nhost: a\r\n\r\n")
    [serving] = connection.tasks
    assert [cycle.scope["path"] for cycle, _ in connection.pipeline] == ["/second"]
    async with asyncio.timeout(30):
        await app.has_begun.wait()
        connection.connection_lost(ConnectionResetError())
        await serving
    assert app.heard == {"/first": ["http.request", "http.disconnect"]}, "whoever waited is never served"


@pytest.mark.parametrize(("breaks", "did"), [(False, ["write", "write_eof"]), (True, ["write"])])
async def test_a_refusal_lingers_only_where_it_could_be_written(
    monkeypatch: pytest.MonkeyPatch, breaks: bool, did: list[str]
) -> None:
    wire = Wire(breaks=breaks)
    connection = connected(wire, App())
    later: list[tuple[float, object]] = []
    monkeypatch.setattr(connection.loop, "call_later", lambda delay, run: later.append((delay, run)))
    connection.data_received(b"POST /direct HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
    monkeypatch.undo()
    assert wire.did == did
    assert later == ([] if breaks else [(LINGER_S, wire.close)])
    connection.data_received(b"what is read after it is dropped")
    assert wire.did == did
    connection.connection_lost(None)
