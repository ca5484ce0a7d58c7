"""Conversations asked for by plain HTTP, for fields that the `openai` package does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.http_client import PendingReply
from tests.support.response_state import Site

Fields = dict[str, Any]


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


def rest(here: Site, key: str | None = None) -> Rest:
    """Requests to this gateway. `key`: name of a key."""
    return Rest(here, None if key is None else f"secret-{key}")


def message(text: str, role: str = "user", **fields: Any) -> Fields:
    """A message. `fields`: more of it, such as `id` and `parent_id`."""
    return {"type": "message", "role": role, "content": text, **fields}


def text_of(item: Fields) -> str:
    return str(item["content"][0]["text"])
