"""A gateway whose responses are asked for: by the SDK, by plain HTTP, over a WebSocket; with its engine, and its store
for who looks inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import openai
from openai.types.responses import Response
from openresponses_types.types import WebSocketErrorEvent
from websockets.asyncio.client import ClientConnection, connect

from assistant.storage.store import StateStore
from assistant.streams.resumable_streams import ResumableStreams
from contract.keys import Key
from contract.routing import ModelRoute
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.http_client import PendingReply
from tests.support.responses import LAST, Fields, as_json, check_event
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
        store = self.gateway.assistant.responses._store
        assert store is not None
        return store

    @property
    def running(self) -> dict[str, Any]:
        """Responses that are being made and may be asked for."""
        running: dict[str, Any] = self.gateway.assistant.responses._running
        return running

    @property
    def streams(self) -> ResumableStreams:
        return streams_of(self.gateway)

    async def make(self, user_input: Any = "Hi", **fields: Any) -> Response:
        """A response, blocking. What the SDK does not know reaches the engine: see MockEngine."""
        extra = {name: fields.pop(name) for name in ("fault", "then", "after", "pause") if name in fields}
        response: Response = await self.client.responses.create(
            model=fields.pop("model", "m"), input=user_input, extra_body=extra, **fields
        )
        return response

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
        await self.store.submit_job(methodcaller("find_response", "", ""))
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


@dataclass(frozen=True)
class Rest:
    """Requests below /v1/conversations of one gateway."""

    site: Site
    key: str | None = None
    """Secret of the key; None: without one."""

    def request(self, method: str, path: str, **fields: Any) -> PendingReply:
        """A request; a GET is without a body."""
        body = None if method == "GET" else fields
        return self.site.gateway.request(method, f"/v1/conversations{path}", body, key=self.key)

    async def get(self, path: str) -> Any:
        return (await self.request("GET", path)).success

    async def post(self, path: str, **fields: Any) -> Any:
        return (await self.request("POST", path, **fields)).success

    async def delete(self, path: str) -> Any:
        return (await self.request("DELETE", path)).success

    async def refused(self, method: str, path: str, **fields: Any) -> tuple[int, str, str | None]:
        """Status, code and place of the error."""
        reply = await self.request(method, path, **fields)
        assert "error" in reply.body, reply.body
        return reply.status, reply.code, reply.error["param"]


def rest(open_site: Site, key: str | None = None) -> Rest:
    """Requests to this gateway. `key`: name of a key."""
    return Rest(open_site, None if key is None else f"secret-{key}")


def message(text: str, role: str = "user", **fields: Any) -> Fields:
    """A message. `fields`: more of it, such as `id` and `parent_id`."""
    return {"type": "message", "role": role, "content": text, **fields}


def text_of(item: Fields) -> str:
    return str(item["content"][0]["text"])


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **fields: Any) -> None:
        """A message `response.create` for the model `m`."""
        await self.connection.send(json.dumps({"type": "response.create", "model": "m", **fields}))

    async def event(self) -> Fields:
        """The next one, which suits its schema."""
        event: Fields = json.loads(await self.connection.recv())
        if event["type"] == "error":
            WebSocketErrorEvent.model_validate_json(as_json(event), strict=True)
        else:
            check_event(event)
        return event

    async def turn(self) -> list[Fields]:
        """The events up to the last one of a response, or a refusal."""
        events = [await self.event()]
        while events[-1]["type"] not in LAST and not (events[-1]["type"] == "error" and len(events) == 1):
            events.append(await self.event())
        return events

    async def create(self, text: str = "Hi", **fields: Any) -> Fields:
        """The response to this, or the error that it is refused with."""
        await self.send(input=text, **fields)
        last = (await self.turn())[-1]
        result: Fields = last["error"] if last["type"] == "error" else last["response"]
        return result


@contextlib.asynccontextmanager
async def socket(gateway: GatewayHarness, path: str = "/v1/responses", **headers: str) -> AsyncIterator[Socket]:
    """A connection to the gateway. Headers: their names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = gateway.url.replace("http", "ws", 1) + path
    async with connect(url, additional_headers=named, ping_interval=None, max_size=None) as connection:
        yield Socket(connection)
