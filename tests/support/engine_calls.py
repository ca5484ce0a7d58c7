"""Requests through an `EngineClient`, and what their listeners were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from contract.routing import Endpoint
from gateway.upstream.client import EngineClient
from gateway.upstream.connection import EngineCall, EngineFailureError, Headers
from tests.fakes.fake_scripted_engine import ScriptedEngine
from tests.support.wait import until

PATIENCE_S = 60.0
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def on(loop: str, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario on a loop of that kind. Whatever the loop would only log fails it."""
    errors: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        await scenario()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())
    assert errors == [], errors


class Recorder:
    """A listener that notes what it was told, and that the order holds. `on_head` and `on_data` are called then."""

    def __init__(
        self,
        on_head: Callable[[], None] = lambda: None,
        on_data: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.status = 0
        self.headers: Headers = []
        self.parts: list[bytes] = []
        self.ended = False
        self.failure: EngineFailureError | None = None
        self.call: EngineCall
        self.violations: list[str] = []
        self.over = asyncio.Event()
        self.on_head = on_head
        self.on_data = on_data
        self.on_end = on_end

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def ending(self) -> str:
        """The outcome in a word: the failure's class or `end`; empty while there is none."""
        return type(self.failure).__name__ if self.failure is not None else "end" if self.ended else ""

    def engine_head(self, status: int, headers: Headers) -> None:
        self._expect("head", self.status == 0)
        self.status, self.headers = status, headers
        self.on_head()

    def engine_data(self, data: bytes) -> None:
        self._expect("data", bool(self.status and data))
        self.parts.append(data)
        self.on_data()

    def engine_end(self) -> None:
        self._expect("end", self.status > 0)
        self.ended = True
        self.over.set()
        self.on_end()

    def engine_failed(self, failure: EngineFailureError) -> None:
        self._expect("failed", True)
        self.failure = failure
        self.over.set()

    def _expect(self, what: str, holds: bool) -> None:
        if not holds or self.ending:
            self.violations.append(f"{what} after {self.ending or self.status}")

    async def outcome(self) -> str:
        """Wait for the end. Returns `ending`."""
        async with asyncio.timeout(PATIENCE_S):
            await self.over.wait()
        assert self.violations == []
        return self.ending


async def well_after(engine: ScriptedEngine, client: EngineClient) -> None:
    """The failed connection is closed on both sides, and the next request gets its answer."""
    await until("closed here", lambda: client.open_connections == 0)
    await until("closed there", lambda: not engine.peers)
    got = post(client, endpoint(engine.url))
    assert (await got.outcome(), got.body) == ("end", b"ok")
    assert (client.open_connections, client.idle_connections) == (1, 1)


async def soon(what: str, look: Callable[[], Any]) -> None:
    """As `until`, and quick where a few turns of the loop are enough."""
    for _ in range(200):
        if look():
            return
        await asyncio.sleep(0)
    await until(what, look)


def endpoint(base_url: str, **fields: Any) -> Endpoint:
    """Where an engine is: of the replica m-0, unless `fields` name another."""
    return Endpoint(**{"replica": "m-0", "base_url": base_url} | fields)


def post(
    client: EngineClient, where: Endpoint, listener: Recorder | None = None, *, body: bytes = b"{}", fresh: bool = False
) -> Recorder:
    recorder = listener or Recorder()
    recorder.call = client.send_request(
        where, "POST", "/v1/chat/completions", b"x-request-id: req-1\r\n", body, recorder, fresh=fresh
    )
    assert not recorder.status, "nothing is told from inside send"
    assert not recorder.ending, "nothing is told from inside send"
    return recorder


@asynccontextmanager
async def client_of(**options: Any) -> AsyncIterator[EngineClient]:
    """A client, which leaves no connection behind."""
    client = EngineClient(options.pop("connect_timeout_s", PATIENCE_S), **options)
    try:
        yield client
    finally:
        await client.close()
        assert (client.open_connections, client.idle_connections, client.connecting_requests) == (0, 0, 0)
