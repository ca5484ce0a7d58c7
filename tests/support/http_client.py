"""Requests to an HTTP API as tests send them, and its replies."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    """What JSON says; text of any other type."""
    headers: CIMultiDictProxy[str]
    content: bytes
    """The body as it came."""

    @property
    def text(self) -> str:
        """The body, not decoded further."""
        return self.content.decode()

    @property
    def error(self) -> Any:
        return self.body["error"]

    @property
    def code(self) -> str:
        return str(self.error["code"])

    @property
    def refusal(self) -> tuple[int, str]:
        """Status, and the error's code."""
        return self.status, self.code

    @property
    def success(self) -> Any:
        """The body of a reply whose status must be 200."""
        assert self.status == 200, self.body
        return self.body

    @property
    def result(self) -> tuple[int, Any]:
        return self.status, self.body


async def read_reply(response: aiohttp.ClientResponse) -> Reply:
    content = await response.read()
    is_json = response.content_type == "application/json"
    body = (json.loads(content) if content else None) if is_json else content.decode(errors="replace")
    return Reply(response.status, body, response.headers, content)


class PendingReply:
    """A request. `await` it for the whole reply; `async with` it for aiohttp's response, as it comes."""

    def __init__(self, pending: Any) -> None:
        self._pending = pending

    def __await__(self) -> Generator[Any, None, Reply]:
        return self._read().__await__()

    async def __aenter__(self) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._pending.__aenter__()
        return response

    async def __aexit__(self, *error: object) -> None:
        await self._pending.__aexit__(*error)

    async def _read(self) -> Reply:
        async with self._pending as response:
            return await read_reply(response)


async def send_request(url: str, method: str = "GET", body: Any = None, **options: Any) -> Reply:
    """The reply to one request over a connection of its own. `options`: see `HttpClient.request`."""
    async with aiohttp.ClientSession() as session:
        return await HttpClient("", session).request(method, url, body, **options)


async def answers(url: str, method: str = "GET", body: Any = None, **options: Any) -> bool:
    """Whether one request is answered with 200; not while nobody listens."""
    try:
        return (await send_request(url, method, body, **options)).status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


class HttpClient:
    """Requests to the API at `url`."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self.url = url
        self.client = client

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        encoded: bool = False,
        **options: Any,
    ) -> PendingReply:
        """`body` is sent as JSON, bytes as they are. `key`: secret of the key that is shown. `encoded`: the path is
        sent as it is written. `options`: aiohttp's."""
        shown = {} if key is None else {"authorization": f"Bearer {key}"}
        if isinstance(body, bytes):
            options["data"], shown["content-type"] = body, "application/json"
        elif body is not None:
            options["json"] = body
        url = URL(self.url + path, encoded=encoded)
        return PendingReply(self.client.request(method, url, headers={**shown, **(headers or {})}, **options))

    def get(self, path: str, **options: Any) -> PendingReply:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, *, key: Any = None, headers: Any = None, **fields: Any) -> PendingReply:
        """As `request`. `fields`: those of the body, where none is given."""
        return self.request("POST", path, fields if body is None else body, key=key, headers=headers)

    def chat(self, model: str = "m", **fields: Any) -> PendingReply:
        """A chat completion; blocking unless `stream=True` is given."""
        plain = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        return self.post("/v1/chat/completions", **{**plain, **fields})
