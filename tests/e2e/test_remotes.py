"""Models that are served elsewhere: gateways ask how they are, the controller never does."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from contract.status import ModelState
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

pytestmark = pytest.mark.slow


@dataclass
class Elsewhere:
    """A server of other people's, as far as its health goes."""

    url: str = ""
    key: str = "sk-123"
    status: int = 200
    limits_every: int | None = None
    """Answer one probe in so many with 429."""
    asked: int = 0
    connections: int = 0
    paths: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.paths.add(request.path)
        if self.limits_every is not None and self.asked % self.limits_every == 0:
            return web.Response(status=429)
        is_known = request.headers.get("Authorization") == f"Bearer {self.key}"
        return web.Response(status=self.status if is_known else 401)


@contextlib.asynccontextmanager
async def elsewhere() -> AsyncIterator[Elsewhere]:
    made = Elsewhere()

    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    loop = asyncio.get_running_loop()

    def connected() -> asyncio.Protocol:
        made.connections += 1
        assert runner.server is not None
        return runner.server()

    server = await loop.create_server(connected, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    yield made
    server.close()
    await runner.cleanup()


@pytest.fixture
def stack(process_stack: RoundhouseStack) -> RoundhouseStack:
    process_stack.settings |= {"ROUNDHOUSE_PROBE_INTERVAL_S": "0.05", "ROUNDHOUSE_RESYNC_S": "0.1"}
    return process_stack


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The file of the key that `Elsewhere` wants."""
    path = tmp_path / "key"
    path.write_text("sk-123\n")
    return path


async def rounds(stack: RoundhouseStack, count: int) -> None:
    """Wait until the controller has looked so often."""
    seen: set[float] = set()

    async def look() -> bool:
        try:
            seen.add((await stack.status()).observed_at or 0.0)
        except aiohttp.ClientError:
            return False
        return len(seen - {0.0}) >= count

    await until(f"{count} rounds", look)


def declare(stack: RoundhouseStack, remote: Elsewhere, key: Path) -> None:
    stack.declare({"far": {"backend": "openai_remote", "base_url": remote.url, "api_key_file": str(key)}})


async def test_the_controller_asks_no_remote_a_gateway_does(stack: RoundhouseStack, key: Path) -> None:
    async with elsewhere() as remote:
        declare(stack, remote, key)
        stack.start("controller")
        await rounds(stack, 3)
        far = await stack.model("far")
        assert far is not None
        assert (far.state, far.last_error) == (ModelState.LOADING, None), "nobody has asked it"
        assert remote.connections == 0
        stack.start("gateway")
        await stack.model_where("far", lambda model: model.state is ModelState.LOADED, "a gateway asked it")
        assert remote.paths == {"/v1/models"}
        assert await _states_while_limited(stack, remote) == {ModelState.LOADED}
        remote.status = 503
        down = await stack.model_where("far", lambda model: model.state is ModelState.FAILED, "it is down")
        assert down.last_error == f"{remote.url}/models answers HTTP 503"
        assert down.retry_at is not None
        reply = await stack.chat("far")
        assert (reply.status, "x-should-retry" in reply.headers, "retry-after" in reply.headers) == (503, False, True)
        remote.status = 200
        await stack.model_where("far", lambda model: model.state is ModelState.LOADED, "it is back")
        assert "sk-123" not in stack.log("controller") + stack.log("gateway")


async def test_a_key_that_changes_is_read_again_and_one_that_cannot_be_is_said(
    stack: RoundhouseStack, key: Path
) -> None:
    key.unlink()
    async with elsewhere() as remote:
        declare(stack, remote, key)
        await stack.open()
        lacking = await stack.model_where("far", lambda model: model.state is ModelState.FAILED, "it has no key")
        assert str(key) in (lacking.last_error or "")
        assert remote.connections == 0
        key.write_text("sk-9\n")
        await stack.model_where("far", lambda model: "its key was refused" in (model.last_error or ""), "refused")
        key.write_text("sk-123\n")
        await stack.model_where("far", lambda model: model.state is ModelState.LOADED, "it has its key")
        assert "sk-" not in stack.log("controller") + stack.log("gateway")


async def test_a_controller_that_comes_back_takes_no_remote_from_clients(stack: RoundhouseStack, key: Path) -> None:
    async with elsewhere() as remote:
        declare(stack, remote, key)
        await stack.open()
        await stack.model_where("far", lambda model: model.state is ModelState.LOADED, "loaded")
        stack.kill("controller")
        asked = remote.asked
        await until("the gateway asks on", lambda: remote.asked > asked)
        stack.start("controller")
        states: set[str] = set()

        async def look() -> bool:
            states.add(await _listed_state(stack))
            try:
                return bool((await stack.status()).gateways)
            except aiohttp.ClientError:
                return False

        await until("the gateway is back", look)
        await rounds(stack, 3)
        states.add(await _listed_state(stack))
        assert states == {"loaded"}
        # Nor does a gateway that is started anew begin without it.
        stack.kill("gateway", signal.SIGTERM)
        await rounds(stack, 3)
        far = await stack.model("far")
        assert far is not None
        assert far.state is ModelState.LOADED, "as it was last seen"


async def _states_while_limited(stack: RoundhouseStack, remote: Elsewhere) -> set[ModelState]:
    """Those of `far` while the remote answers some probes with 429."""
    remote.limits_every = 3
    asked, states = remote.asked, set[ModelState]()

    async def look() -> bool:
        far = await stack.model("far")
        assert far is not None
        states.add(far.state)
        return remote.asked > asked + 3

    await until("it is asked four times more", look)
    remote.limits_every = None
    return states


async def _listed_state(stack: RoundhouseStack) -> str:
    """What the gateway says of `far`."""
    [model] = (await stack.request("GET", "/v1/models")).body["data"]
    return str(model["state"])
