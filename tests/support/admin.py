"""The admin API as a test's client sees it, through the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from tests.support.wait import until


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.body["error"]["code"])


class AdminApi:
    """`/v1/admin` of one gateway (or controller). Open it with `async with`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120))

    async def __aenter__(self) -> AdminApi:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def ask(self, method: str, path: str, body: object = None, **query: object) -> Reply:
        """One request below `/v1/admin`; `body` as JSON, bytes as they are."""
        params = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items()}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data is not None else {}
        url = f"{self._url}/v1/admin/{path}"
        async with self.session.request(method, url, params=params, data=data, headers=headers) as answer:
            text = await answer.text()
            kind = answer.headers.get("content-type", "")
            return Reply(
                answer.status, json.loads(text) if kind.startswith("application/json") else text, answer.headers
            )

    async def load(self, name: str, body: object = None, **query: object) -> Reply:
        """`POST models/{name}/load`."""
        return await self.ask("POST", f"models/{quote(name, safe='/:@')}/load", body, **query)

    async def unload(self, name: str, body: object = None, **query: object) -> Reply:
        """`POST models/{name}/unload`."""
        return await self.ask("POST", f"models/{quote(name, safe='/:@')}/unload", body, **query)

    async def row(self, name: str) -> dict[str, Any]:
        """One model's row, from the list."""
        listed = await self.ask("GET", "models")
        assert listed.status == 200, listed.body
        found: dict[str, Any] = next(each for each in listed.body["models"] if each["name"] == name)
        return found

    async def state(self, name: str, wanted: str) -> dict[str, Any]:
        """The row, once its state is the wanted one."""

        async def look() -> dict[str, Any] | None:
            row = await self.row(name)
            return row if row["runtime_state"] == wanted else None

        found: dict[str, Any] = await until(f"{name} is {wanted}", look)
        return found

    async def chat(self, model: str, **fields: object) -> Reply:
        """One blocking chat request to the gateway."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}
        async with self.session.post(f"{self._url}/v1/chat/completions", json=body) as answer:
            return Reply(answer.status, await answer.json(), answer.headers)

    @asynccontextmanager
    async def stream(self, model: str, **fields: object) -> AsyncIterator[aiohttp.ClientResponse]:
        """One chat request as a stream, from its first event on."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True, **fields}
        async with self.session.post(f"{self._url}/v1/chat/completions", json=body) as answer:
            yield answer

    async def transitions(self, model: str, after: int) -> list[str]:
        """The states that the model went through since that event, as the events tell."""
        entries = (await self.ask("GET", "history", model=model, kind="state", limit=500)).body["entries"]
        return [entry["details"]["to"] for entry in reversed(entries) if entry["id"] > after]
