"""A controller that listens on a port: who has no token of its gateways' is refused, and nobody configures one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.http_client import HttpClient, answers, send_request
from tests.support.ports import free_port
from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.wait import until

pytestmark = pytest.mark.slow

HEADER = "x-roundhouse-gateway-token"


class PortStack(RoundhouseStack):
    """Its controller listens on a port of this machine, as in a compose project."""

    def __init__(self, root: Path) -> None:
        self.controller_url = f"http://127.0.0.1:{free_port()}"
        self.token_file = root / "link" / "gateway-token"
        super().__init__(
            root,
            "process",
            {
                "ROUNDHOUSE_CONTROLLER_LISTEN": self.controller_url.removeprefix("http://"),
                "ROUNDHOUSE_CONTROLLER_URL": self.controller_url,
                "ROUNDHOUSE_GATEWAY_TOKEN_FILE": str(self.token_file),
            },
        )

    def _own(self) -> dict[str, str]:
        return {HEADER: self.token_file.read_text().strip()} if self.token_file.exists() else {}

    async def get(self, path: str) -> Any:
        return (await send_request(self.controller_url + path, headers=self._own())).body

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return (await send_request(self.controller_url + path, "POST", body, headers=self._own())).body

    async def controller_listens(self) -> None:
        await until("the controller listens", lambda: answers(self.controller_url + "/internal/health"))


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[PortStack]:
    made = PortStack(tmp_path / "here")
    made.declare({"m": {"backend": "stub", "enabled": False}})
    yield made
    await made.close()


async def test_who_has_no_token_is_refused_and_the_link_and_the_command_line_have_it(stack: PortStack) -> None:
    stack.start("controller")
    await stack.controller_listens()
    for headers in ({}, {HEADER: "wrong"}, {"Authorization": "Bearer wrong"}):
        async with aiohttp.ClientSession(stack.controller_url, headers=headers) as stranger:
            client = HttpClient("", stranger)
            for method, path in (
                ("GET", "/internal/status"),
                ("GET", "/internal/plan"),
                ("POST", "/internal/pause"),
                ("POST", "/internal/shutdown"),
                ("GET", "/v1/admin/models"),
                ("POST", "/v1/admin/models/m/load"),
                ("GET", "/openapi.json"),
                ("GET", "/no/such/path"),
                ("GET", "/internal/health/"),
                ("GET", "/metrics/"),
            ):
                reply = await client.request(method, path, {} if method == "POST" else None)
                assert reply.refusal == (401, "invalid_gateway_token"), (method, path)
                assert "ROUNDHOUSE_GATEWAY_TOKEN_FILE" in str(reply.error["next_steps"])
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await stranger.ws_connect("/internal/link")
            assert refused.value.status == 401
            for path in ("/internal/health", "/metrics"):
                assert (await client.get(path)).status == 200, path

    stack.start("gateway")
    await stack.gateway_connected()
    reply = await stack.request("GET", "/v1/admin/models")
    assert [model["name"] for model in reply.success["models"]] == ["m"]
    assert stack.run_command("status").returncode == 0
    without = stack.run_command("status", ROUNDHOUSE_GATEWAY_TOKEN_FILE=str(stack.root / "nowhere"))
    assert without.returncode != 0
    assert "ROUNDHOUSE_GATEWAY_TOKEN_FILE" in without.stdout + without.stderr
    token = stack.token_file.read_text().strip()
    assert token not in stack.log("controller") + stack.log("gateway")
    assert "ERROR" not in stack.log("controller"), "who is refused is no error of ours"
    assert stack.token_file.stat().st_mode & 0o777 == 0o600


async def test_a_gateway_may_start_first_and_takes_up_a_token_that_changes(stack: PortStack) -> None:
    stack.start("gateway")
    stack.start("controller")
    await stack.gateway_connected()
    first = stack.token_file.read_text()
    stack.kill("controller")
    stack.start("controller")
    await stack.controller_listens()
    assert stack.token_file.read_text() == first, "it outlives the controller"
    await stack.gateway_connected()

    # What counts is what is in the file now; a gateway that shows another one is refused, and says why.
    stack.kill("controller")
    right = "another-token-of-the-operators-own"
    stack.token_file.write_text("f" * 40)
    stack.settings["ROUNDHOUSE_GATEWAY_TOKEN_FILE"] = str(stack.root / "controllers-own")
    (stack.root / "controllers-own").write_text(right + "\n")
    logged = len(stack.log("gateway"))
    stack.start("controller")
    await until("the gateway is refused", lambda: "ROUNDHOUSE_GATEWAY_TOKEN_FILE" in stack.log("gateway")[logged:])
    reply = await stack.request("GET", "/v1/admin/models")
    assert reply.refusal == (503, "controller_unavailable"), "it is not the client's key"
    assert "token" in reply.error["message"]
    stack.token_file.write_text(right)
    await stack.gateway_connected()
    assert (await stack.request("GET", "/v1/admin/models")).status == 200
