"""Conversations asked for by plain HTTP, for fields that the `openai` package does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.response_state import Site

Fields = dict[str, Any]


@dataclass(frozen=True)
class Rest:
    """Requests below /v1/conversations of one gateway."""

    here: Site
    key: str | None = None
    """Secret of the key; None: without one."""

    async def ask(self, method: str, path: str, **fields: Any) -> tuple[int, Any]:
        """Status and decoded body."""
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        harness = self.here.here
        url = f"{harness.url}/v1/conversations{path}"
        body = None if method == "GET" else fields
        async with harness.client.request(method, url, headers=headers, json=body) as answer:
            return answer.status, await answer.json()

    async def told(self, method: str, path: str, **fields: Any) -> Any:
        """The body of an answer that is no error."""
        status, body = await self.ask(method, path, **fields)
        assert status == 200, body
        return body

    async def get(self, path: str) -> Any:
        """What it reads."""
        return await self.told("GET", path)

    async def post(self, path: str, **fields: Any) -> Any:
        """What it made or changed."""
        return await self.told("POST", path, **fields)

    async def delete(self, path: str) -> Any:
        """What is said of the deletion."""
        return await self.told("DELETE", path)

    async def refused(self, method: str, path: str, **fields: Any) -> tuple[int, str, str | None]:
        """Status, code and place of the error."""
        status, body = await self.ask(method, path, **fields)
        assert "error" in body, body
        return status, body["error"]["code"], body["error"]["param"]


def rest(here: Site, key: str | None = None) -> Rest:
    """Requests to this gateway. `key`: name of a key."""
    return Rest(here, None if key is None else f"secret-{key}")


def said(text: str, role: str = "user", **fields: Any) -> Fields:
    """A message. `fields`: more of it, such as `id` and `parent_id`."""
    return {"type": "message", "role": role, "content": text, **fields}


def text_of(item: Fields) -> str:
    """What a message says."""
    return str(item["content"][0]["text"])
