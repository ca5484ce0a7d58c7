"""The admin API as a test's client sees it, through the gateway."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web

from contract.errors import ErrorBody, ErrorEnvelope
from tests.fakes.fake_admin import ReceivedRequest
from tests.fakes.gateway_harness import GatewayHarness
from tests.support.http_client import HttpClient, PendingReply, Reply
from tests.support.wait import until


class AdminApi:
    """`/v1/admin` of one gateway (or controller). Open it with `async with`."""

    def __init__(self, url: str) -> None:
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120))
        self._client = HttpClient(url, self.session)

    async def __aenter__(self) -> AdminApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def request(self, method: str, path: str, body: object = None, **query: object) -> Reply:
        """One request below `/v1/admin`; `body` as JSON, bytes as they are."""
        params = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items()}
        return await self._client.request(method, f"/v1/admin/{path}", body, params=params)

    async def load(self, name: str, body: object = None, **query: object) -> Reply:
        return await self.request("POST", f"models/{quote(name, safe='/:@')}/load", body, **query)

    async def unload(self, name: str, body: object = None, **query: object) -> Reply:
        return await self.request("POST", f"models/{quote(name, safe='/:@')}/unload", body, **query)

    async def row(self, name: str) -> dict[str, Any]:
        """One model's row, from the list."""
        listed = await self.request("GET", "models")
        assert listed.status == 200, listed.body
        found: dict[str, Any] = next(each for each in listed.body["models"] if each["name"] == name)
        return found

    async def state(self, name: str, wanted: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            row = await self.row(name)
            return row if row["runtime_state"] == wanted else None

        found: dict[str, Any] = await until(f"{name} is {wanted}", look)
        return found

    async def chat(self, model: str, **fields: object) -> Reply:
        """One blocking chat request to the gateway."""
        return await self._client.chat(model, **fields)

    def stream(self, model: str, **fields: object) -> PendingReply:
        """One chat request as a stream, from its first event on."""
        return self._client.chat(model, stream=True, **fields)

    async def transitions(self, model: str, after: int) -> list[str]:
        """The states that the model went through since that event, as the events tell."""
        entries = (await self.request("GET", "history", model=model, kind="state", limit=500)).body["entries"]
        return [entry["details"]["to"] for entry in reversed(entries) if entry["id"] > after]


def error_of(reply: Reply) -> ErrorBody:
    """The envelope's inner object, which has the answer's id."""
    error = ErrorEnvelope.model_validate(reply.body).error
    assert (error.status, error.request_id) == (reply.status, reply.headers["x-request-id"])
    return error


async def received(gateway: GatewayHarness, path: str = "/v1/admin/models") -> ReceivedRequest:
    assert (await gateway.get(path, encoded=True)).status == 200
    return gateway.controller.admin.requests[-1]


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError
