"""What each feature of the gateway costs the requests that use it: CPU time of the gateway's process per request, above
that of the same request without the feature.

Every round measures each request once, beginning with another one each time; a feature's cost is the median of the
rounds' differences. The engine is a process of its own; retrieval and the model that calls tools are fakes in this one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from aiohttp import web

from contract.keys import Key
from contract.tools import ToolRoute
from tests.bench.load import CHAT, TEXT, allow_many_files, close, connect, post_bytes, wait_until_answered
from tests.bench.report import Figure
from tests.bench.targets import Target, declared_keys, start_controller, start_gateway, start_module
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import fake_retrieval, hit
from tests.fakes.fake_tool_model import Call, Fields, Move, ToolModel
from tests.fakes.served_app import served_app
from tests.support.compiled_gateway import build_gateway, environment_of

CONNECTIONS: Final = 16
SECONDS: Final = 1.0
HITS: Final = 3
RESPONSES: Final = "/v1/responses"
NUMBER: Final = "00000000"
"""In a body or a header: another number in each request."""
_START_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    name: str
    base: str
    """The request that differs in the feature alone; empty: this is one of those."""
    fields: dict[str, Any]
    path: str = CHAT
    header: str = ""
    has_limits: bool = False
    """Whether its key has every limit that there is; else it has none."""


_CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": TEXT}]}
_STREAM: Final = {**_CHAT, "stream": True, "max_tokens": 13}
_RESPONSE: Final[dict[str, Any]] = {"input": TEXT, "store": False}
_TOOLS: Final = [{"type": "mcp", "server_label": "roundhouse", "require_approval": "never"}]
REQUESTS: Final = (
    Request("chat", "", _CHAT),
    Request("a key with limits, weight, tenant and expiry", "chat", _CHAT, has_limits=True),
    Request("a session's first turn", "chat", {**_CHAT, "session_id": f"s-{NUMBER}"}),
    Request(f"documents: a search, {HITS} passages", "chat", {**_CHAT, "rag": {"top_k": HITS}}),
    Request("stream of 13 chunks", "", _STREAM),
    Request("a stream id", "stream of 13 chunks", _STREAM, header=f"x-conversation-id: c-{NUMBER}"),
    Request("progress", "stream of 13 chunks", _STREAM, header="x-progress: true"),
    Request("response", "", _RESPONSE, RESPONSES),
    Request("a response that is stored", "response", {**_RESPONSE, "store": True}, RESPONSES),
    Request(
        "a tool's call and a second round", "response", {**_RESPONSE, "model": "caller", "tools": _TOOLS}, RESPONSES
    ),
)


@dataclass(frozen=True, slots=True)
class Setting:
    gateway: Target
    plain: str
    """The secret of a key without limits."""
    limited: str
    model: ToolModel
    retrieval_searches: list[Any]

    def forget(self) -> None:
        """Drop what the fakes noted."""
        self.model.requests.clear()
        self.retrieval_searches.clear()


def _decide(body: Fields) -> Move:
    last = body["messages"][-1]
    if last["role"] == "tool" or "tools" not in body:
        assert last["role"] != "tool" or "42" in last["content"], last
        return Move("Done.")
    return Move(calls=[Call("roundhouse__calculate", {"expression": "6 * 7"})])


@asynccontextmanager
async def _start() -> AsyncIterator[Setting]:
    plain, limited = (f"sk-{secrets.token_urlsafe(32)}" for _ in range(2))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-bench")))
        controller = await start_controller(stack)
        retrieval = await stack.enter_async_context(fake_retrieval())
        retrieval.hits = [hit(number, "The fox sleeps beside the shed. " * 12) for number in range(1, HITS + 1)]
        model, app = ToolModel(_decide), web.Application()
        app.router.add_post(CHAT, model.answer)
        caller = await stack.enter_async_context(served_app(app))
        _, engine_port = await start_module(stack, "tests.bench.engine")
        compiled = environment_of(await asyncio.to_thread(build_gateway))
        gateway = await start_gateway(stack, controller, folder, ROUNDHOUSE_RETRIEVAL_URL=retrieval.url, **compiled)
        ample: dict[str, Any] = {"target_inflight": 4096, "queue_limit": 4096, "apis": (CHAT,)}
        await controller.publish(
            route("bench", [f"http://127.0.0.1:{int(engine_port)}"], session_cache=4096, **ample),
            route("caller", [caller], **ample),
            keys=(
                Key(
                    name="plain",
                    tenant="plain",
                    tools=("*",),
                    sha256=hashlib.sha256(plain.encode()).hexdigest(),
                ),
                *declared_keys(limited),
            ),
            tools=(ToolRoute(name="calculate"),),
        )
        await wait_until_answered(gateway.port, post_bytes(gateway.port, plain, CHAT, **_CHAT), _START_LIMIT_S)
        yield Setting(gateway, plain, limited, model, retrieval.searches)


async def _measure(request: Request, setting: Setting, numbers: Iterator[int]) -> float:
    """Microseconds of the gateway's CPU time per request."""
    gateway, secret = setting.gateway, setting.limited if request.has_limits else setting.plain
    made = post_bytes(gateway.port, secret, request.path, **request.fields)
    if request.header:
        made = made.replace(b"\r\n\r\n", f"\r\n{request.header}\r\n\r\n".encode(), 1)
    opened = await connect(gateway.port, CONNECTIONS)
    answered, end = 0, time.perf_counter() + SECONDS

    async def ask_again(index: int) -> None:
        nonlocal answered
        while time.perf_counter() < end:
            await opened[index].ask(made.replace(NUMBER.encode(), b"%08d" % next(numbers)))
            answered += 1

    before = gateway.cpu_s()
    await asyncio.gather(*map(ask_again, range(CONNECTIONS)))
    used_s = gateway.cpu_s() - before
    close(opened)
    return used_s / answered * 1e6


async def _measure_all(rounds: int) -> list[Figure]:
    seen: dict[str, list[float]] = {request.name: [] for request in REQUESTS}
    numbers = itertools.count(1)
    async with _start() as setting:
        for number in range(rounds):
            shift = number % len(REQUESTS)
            for request in (*REQUESTS[shift:], *REQUESTS[:shift]):
                seen[request.name].append(await _measure(request, setting, numbers))
                setting.forget()
    shown = []
    for request in REQUESTS:
        own = seen[request.name]
        if request.base:
            own = [with_it - without for with_it, without in zip(own, seen[request.base], strict=True)]
        shown.append(
            Figure(f"{request.base}: + {request.name}" if request.base else request.name, statistics.median(own), "us")
        )
    return shown


def run(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure the compiled gateway. `arguments`: `--rounds N`."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=features", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    allow_many_files()
    return uvloop.run(_measure_all(options.rounds))
