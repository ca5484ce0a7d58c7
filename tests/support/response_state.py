"""A gateway whose responses are asked for: its SDK client, its engine, and its store, for who looks inside."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.responses import Response

from controller.schema.keys import Key
from controller.schema.routing import ModelRoute
from gateway.storage.store import StateStore
from gateway.streams.resumable_streams import ResumableStreams
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.resumed_streams import streams_of
from tests.support.wait import until

OVER = ("completed", "incomplete", "failed", "cancelled")


@dataclass
class Site:
    """One gateway with the model `m`."""

    gateway: GatewayHarness
    engine: MockEngine
    client: openai.AsyncOpenAI
    let_go: Callable[[], None] = lambda: None
    """Ends `held_store` before its time."""

    @property
    def store(self) -> StateStore:
        """The store, whose thread may be held."""
        server: Any = self.gateway.server
        store: StateStore = server._gateway.inference._services.responses._store
        return store

    @property
    def running(self) -> dict[str, Any]:
        """Responses that are being made and may be asked for."""
        server: Any = self.gateway.server
        running: dict[str, Any] = server._gateway.inference._services.responses._running
        return running

    @property
    def streams(self) -> ResumableStreams:
        return streams_of(self.gateway)

    async def make(self, said: Any = "Hi", **fields: Any) -> Response:
        """A response, blocking. What the SDK does not know reaches the engine: see MockEngine."""
        extra = {name: fields.pop(name) for name in ("fault", "then", "after", "pause") if name in fields}
        made: Response = await self.client.responses.create(
            model=fields.pop("model", "m"), input=said, extra_body=extra, **fields
        )
        return made

    async def over(self, response_id: str) -> Response:
        """Wait until it is not being made any more."""

        async def look() -> Response | None:
            found = await self.client.responses.retrieve(response_id)
            return found if found.status in OVER else None

        found: Response = await until("the response is over", look)
        return found

    def messages(self, at: int = -1) -> list[tuple[str, str]]:
        """Role and text of what the engine was sent."""
        return [(each["role"], each["content"]) for each in self.engine.requests[at].body["messages"]]

    @contextlib.asynccontextmanager
    async def held_store(self) -> AsyncIterator[None]:
        """The disk takes its time. One job waits then, and nothing that was asked for before."""
        go_on = threading.Event()
        await self.store.find_response("", "")
        self.store.submit_job(lambda _: go_on.wait())
        self.let_go = go_on.set
        try:
            yield
        finally:
            go_on.set()

    def as_key(self, name: str) -> openai.AsyncOpenAI:
        return self.client.with_options(api_key=f"secret-{name}")


@contextlib.asynccontextmanager
async def site(
    *more: ModelRoute, keys: tuple[Key, ...] = (), m: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """One with these settings. `m`: fields of the model's route."""
    async with gateway_harness(**settings) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url], **(m or {})), *more, keys=keys)
        api_key = f"secret-{keys[0].name}" if keys else "none"
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=api_key, max_retries=0) as client:
            yield Site(gateway, engine, client)


async def refusal(asking: Any) -> tuple[int, str | None, str | None]:
    """Status, code and place of the error that it ends with."""
    try:
        await asking
    except openai.APIStatusError as error:
        body: Any = error.body
        return error.status_code, body["code"], body["param"]
    raise AssertionError("it was not refused")


async def settled() -> None:
    """Let callbacks run."""
    for _ in range(5):
        await asyncio.sleep(0)


def engine_is_paused(run: Any) -> bool:
    """Whether the gateway reads nothing more from the engine of a response that is being made."""
    engine = run._exchange.engine
    # None: the request waits for its slot, or the attempt for a connection.
    call = getattr(engine._attempt, "_call", None) if engine is not None else None
    return call is not None and call.is_paused
