"""A client of responses over WebSocket, as Open Responses' compliance cases ask."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from openresponses_types.types import WebSocketErrorEvent
from websockets.asyncio.client import ClientConnection, connect

from tests.fakes.gateway_harness import GatewayHarness
from tests.support.responses import LAST, Fields, as_json, check_event


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **fields: Any) -> None:
        """A message `response.create` for the model `m`."""
        await self.connection.send(json.dumps({"type": "response.create", "model": "m", **fields}))

    async def event(self) -> Fields:
        """The next one, which suits its schema."""
        told: Fields = json.loads(await self.connection.recv())
        if told["type"] == "error":
            WebSocketErrorEvent.model_validate_json(as_json(told), strict=True)
        else:
            check_event(told)
        return told

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
        told: Fields = last["error"] if last["type"] == "error" else last["response"]
        return told


@contextlib.asynccontextmanager
async def socket(gateway: GatewayHarness, path: str = "/v1/responses", **headers: str) -> AsyncIterator[Socket]:
    """A connection to the gateway. Headers: their names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = gateway.url.replace("http", "ws", 1) + path
    async with connect(url, additional_headers=named, ping_interval=None, max_size=None) as connection:
        yield Socket(connection)
