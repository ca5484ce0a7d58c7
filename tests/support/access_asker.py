"""Who asks a gateway with every sort of key, and what is due to him."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, TypeVar

from contract.route_spec import Access
from contract.tools import ToolRoute
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.fakes.mock_engine import MockEngine
from tests.support.campaign import campaign_count
from tests.support.queueing import key
from tests.support.raw_http import Answer, RawClient, raw

Item = TypeVar("Item")
BOTH: Final = ("inference", "admin")
KEYS: Final = (
    key("all", scopes=BOTH, tools=("*",)),
    key("inference", tools=("*",)),
    key("admin", scopes=("admin",), tools=("*",)),
    key("expired", scopes=BOTH, tools=("*",), expires_at=time.time() - 1),
    key("stranger", scopes=BOTH, tools=("*",)),
)
NOBODY: Final = ("", "nobody", "expired")
"""Whose key opens nothing: none, one that is not known, and one that was."""
OPENS: Final[Mapping[str, tuple[Access, ...]]] = {
    **dict.fromkeys(NOBODY, ("open", "metrics", "page")),
    "inference": ("open", "metrics", "page", "any_key", "inference"),
    "admin": ("open", "metrics", "page", "any_key", "admin"),
    "all": ("open", "metrics", "page", "any_key", "inference", "admin"),
    "stranger": ("open", "metrics", "page", "any_key", "inference", "admin"),
}
ENDLESS: Final = ("GET", "/models/sse")
"""A stream of events that ends with the gateway, so that nobody waits for its end."""
NO_RESPONSE: Final = "resp_" + "0" * 48
BODY: Final = json.dumps(
    {"model": "org/m", "messages": [], "input": "Hi", "prompt": "Hi", "query": "Hi", "documents": ["Hi"]}
)


def filled_in(path: str, response_id: str = NO_RESPONSE) -> str:
    parts = {"{name:path}": "org/m", "{response_id}": response_id, "{id}": "0", "{rest:path}": "plan"}
    parts |= {
        "{path:path}": "assets/none.js",
        "{completion_id}": "chatcmpl-none",
        "{conversation_id}": "conv_none",
        "{item_id}": "msg_none",
        "{server}": "none",
    }
    for part, text in parts.items():
        path = path.replace(part, text)
    return path


def bearer(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer secret-{who}"} if who else {}


def verdict(access: Access, who: str) -> tuple[int, str] | None:
    """Status and code of the refusal that is due; None: he is let in."""
    if access in OPENS[who]:
        return None
    return (401, "invalid_api_key") if who in NOBODY else (403, "scope_required")


@contextlib.asynccontextmanager
async def guarded() -> AsyncIterator[tuple[GatewayHarness, MockEngine]]:
    """A gateway with the keys, the model `org/m`, and a tool: without any, routes of tools refuse everybody."""
    async with gateway_harness(engine_state_routes=True) as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m", [engine.url]), keys=KEYS, tools=(ToolRoute(name="current_time"),))
        yield gateway, engine


def reached(gateway: GatewayHarness, engine: MockEngine) -> tuple[int, int]:
    """How many requests have come to the engine, and to the controller."""
    return len(engine.client_requests), len(gateway.controller.admin.requests)


def some_of(items: Sequence[Item], turn: int, who: str) -> Sequence[Item]:
    """All of them where nobody is let in, since that is soon done, and in a campaign; else a third, in turn others."""
    first = turn % len(items)
    turned = [*items[first:], *items[:first]]
    return turned[: len(items) if who in NOBODY else campaign_count(len(items) // 3, len(items))]


class Asker:
    """Sends requests on a few connections beside each other, and on others where the gateway ends one."""

    LANES = 8

    def __init__(self, gateway: GatewayHarness, stack: contextlib.AsyncExitStack) -> None:
        self._here = gateway
        self._stack = stack
        self._clients: dict[int, RawClient] = {}

    async def request(self, method: str, target: str, who: str) -> Answer:
        (answer,) = await self.request_all([(method, target, b"localhost")], who)
        return answer

    async def request_all(self, requests: Sequence[tuple[str, str, bytes]], who: str) -> list[Answer]:
        """The whole answers to requests of this method, target and Host."""
        lanes = [self._request_in_lane(lane, requests[lane :: self.LANES], who) for lane in range(self.LANES)]
        by_lane = await asyncio.gather(*lanes)
        return [by_lane[number % self.LANES][number // self.LANES] for number in range(len(requests))]

    async def _request_in_lane(self, lane: int, requests: Sequence[tuple[str, str, bytes]], who: str) -> list[Answer]:
        answers = []
        for method, target, host in requests:
            client = self._clients.get(lane)
            if client is None:
                client = await self._stack.enter_async_context(raw(self._here))
            number = len(client.answers) + 1
            client.write(_request(method, target, who, host))
            answers.append(await client.answer(number))
            if answers[-1].all("connection"):
                self._clients.pop(lane, None)
            else:
                self._clients[lane] = client
        return answers


def _request(method: str, target: str, who: str, host: bytes) -> bytes:
    body = BODY.encode() if method == "POST" else b""
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"host: " + host, b"content-length: %d" % len(body)]
    lines += [f"{name}: {value}".encode() for name, value in bearer(who).items()]
    return b"\r\n".join([*lines, b"", body])
