"""Who may administer: without keys only where that is open, and always only at the addresses that are meant for it.

A connection's own local address is what counts: neither the peer's, nor what a header says.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from gateway.app import create_gateway
from gateway.settings import GatewaySettings
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines, gateway_harness
from tests.support.gateway_process import ended, start
from tests.support.queueing import key
from tests.support.require import require
from tests.support.tls_files import make_certificate

MEANT, OTHER = "127.0.0.2", "127.0.0.3"
"""Both are listened on; admin requests are for the first."""
ADMIN_ROUTES = [
    ("POST" if method == "*" else method, path.replace("{rest:path}", "plan").replace("{id}", "0"))
    for method, path, access in create_gateway(GatewaySettings(), None).app.access.list_declarations()
    if access == "admin"
]
REFUSALS = ("admin_closed", "admin_not_here")
KEYS = (key("boss", scopes=("admin",)), key("user", scopes=("inference",)))
BOSS, USER = ({"authorization": f"Bearer secret-{name}"} for name in ("boss", "user"))


async def code_of(
    gateway: GatewayHarness,
    method: str,
    path: str,
    *,
    at: str | None = None,
    headers: dict[str, str] | None = None,
    **connecting: Any,
) -> str:
    """The error code that a request is refused with, or `status N`. `at`: the address that is connected to."""
    parts = urlsplit(gateway.url)
    url = f"{parts.scheme}://{f'[{at}]' if at and ':' in at else at or parts.hostname}:{parts.port}{path}"
    body = {"model": "m", "prompt": "Hi"} if method == "POST" else None
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(**connecting)) as client,
        client.request(method, url, json=body, headers=headers) as answer,
    ):
        text = await answer.text()
        is_refusal = answer.status == 403 and text
        return str(json.loads(text)["error"]["code"]) if is_refusal else f"status {answer.status}"


async def inference_at(gateway: GatewayHarness, at: str | None = None, headers: dict[str, str] | None = None) -> str:
    return await code_of(gateway, "POST", "/v1/completions", at=at, headers=headers)


@asynccontextmanager
async def open_gateway(**settings: Any) -> AsyncIterator[GatewayHarness]:
    """A gateway with the model `m` and every route switched on."""
    async with gateway_harness(engine_state_routes=True, **settings) as gateway, engines(1) as (engine,):
        await gateway.publish(route("m", [engine.url]))
        yield gateway


async def admin_codes(gateway: GatewayHarness, **request: Any) -> set[str]:
    """What every admin route refuses such a request with."""
    return {await code_of(gateway, method, path, **request) for method, path in ADMIN_ROUTES}


def test_admin_routes_are_of_the_framework_and_of_inference() -> None:
    assert ("POST", "/v1/admin/plan") in ADMIN_ROUTES
    assert {("GET", "/slots"), ("POST", "/slots/0"), ("POST", "/props"), ("POST", "/lora-adapters")} < {*ADMIN_ROUTES}


@pytest.mark.parametrize(
    ("settings", "is_open"),
    [
        ({}, True),
        ({"open_admin": False}, False),
        ({"host": "0.0.0.0", "open": True}, False),
        ({"host": "127.0.0.1,0.0.0.0", "open": True}, False),
        ({"host": "0.0.0.0", "open": True, "open_admin": True}, True),
    ],
)
async def test_without_keys_admin_routes_are_open_where_the_setting_says_so(
    settings: dict[str, Any], is_open: bool
) -> None:
    async with open_gateway(**settings) as gateway:
        codes = await admin_codes(gateway)
        if is_open:
            assert not codes & set(REFUSALS)
            assert gateway.controller.admin.requests
        else:
            assert codes == {"admin_closed"}
            assert not gateway.controller.admin.requests
        assert await inference_at(gateway) == "status 200"
        assert await code_of(gateway, "GET", "/v1/models") == "status 200"
        assert await code_of(gateway, "GET", "/health") == "status 200"


async def test_who_is_refused_is_told_what_to_do() -> None:
    async with open_gateway(open_admin=False) as gateway, gateway.post("/v1/admin/plan") as answer:
        told = (await answer.json())["error"]
        steps = " ".join(told["next_steps"])
        assert answer.headers["x-should-retry"] == "false"
    assert "roundhouse key new" in steps
    assert "ROUNDHOUSE_OPEN_ADMIN=1" in steps


@pytest.mark.parametrize("open_admin", [True, False])
async def test_with_keys_their_scopes_rule(open_admin: bool) -> None:
    async with open_gateway(host="0.0.0.0", open=True, open_admin=open_admin) as gateway:
        await gateway.publish(keys=KEYS)
        assert not await admin_codes(gateway, headers=BOSS) & set(REFUSALS)
        assert await admin_codes(gateway, headers=USER) == {"scope_required"}
        assert await admin_codes(gateway) == {"status 401"}


@pytest.mark.parametrize("keys", [(), KEYS], ids=["without keys", "with keys"])
async def test_admin_requests_are_taken_at_the_addresses_meant_for_them_alone(keys: tuple[Any, ...]) -> None:
    headers = BOSS if keys else {}
    async with open_gateway(host=f"{MEANT},{OTHER}", admin_host=(MEANT,)) as gateway:
        await gateway.publish(keys=keys)
        assert not await admin_codes(gateway, at=MEANT, headers=headers) & set(REFUSALS)
        gateway.controller.admin.requests.clear()
        assert await admin_codes(gateway, at=OTHER, headers=headers) == {"admin_not_here"}
        for lie in (MEANT, f"{MEANT}:80", "localhost"):
            forwarded = {"x-forwarded-for": MEANT, "forwarded": f"for={MEANT};host={MEANT}", "x-forwarded-host": MEANT}
            assert await admin_codes(gateway, at=OTHER, headers=headers | {"host": lie} | forwarded) == {
                "admin_not_here"
            }
        assert await admin_codes(gateway, at=OTHER, headers=headers, local_addr=(MEANT, 0)) == {"admin_not_here"}
        for method in ("GET", "DELETE", "PUT", "PATCH"):
            assert await code_of(gateway, method, "/v1/admin/models", at=OTHER, headers=headers) == "admin_not_here"
            assert await code_of(gateway, method, "/v1/%61dmin/models", at=OTHER, headers=headers) == "admin_not_here"
        assert not gateway.controller.admin.requests
        assert not await admin_codes(gateway, at=MEANT, headers=headers, local_addr=(OTHER, 0)) & set(REFUSALS)


async def test_inference_goes_on_where_administration_does_not() -> None:
    async with open_gateway(host=f"{MEANT},{OTHER}", admin_host=(MEANT,)) as gateway:
        for at in (MEANT, OTHER):
            assert await inference_at(gateway, at) == "status 200"
            assert await code_of(gateway, "GET", "/v1/models", at=at) == "status 200"


async def test_the_address_counts_where_the_gateway_listens_on_all_of_them() -> None:
    async with open_gateway(host="0.0.0.0", open=True, open_admin=True, admin_host=(MEANT, "localhost")) as gateway:
        for at in (MEANT, "127.0.0.1"):
            assert not await admin_codes(gateway, at=at) & set(REFUSALS)
        assert await admin_codes(gateway, at=OTHER) == {"admin_not_here"}


async def test_of_both_families_at_one_socket_an_address_is_the_same_by_either_name() -> None:
    """Such a socket knows its IPv4 addresses as `::ffff:127.0.0.2`."""
    require("ipv6", _has_ipv6(), "no IPv6 on this machine")
    settings: dict[str, Any] = {"host": "::", "open": True, "open_admin": True}
    async with open_gateway(**settings, admin_host=(MEANT, "::1")) as gateway:
        for at in (MEANT, "::1"):
            assert not await admin_codes(gateway, at=at) & set(REFUSALS)
        assert await admin_codes(gateway, at=OTHER) == {"admin_not_here"}
    async with open_gateway(**settings, admin_host=(f"::ffff:{MEANT}",)) as gateway:
        assert not await admin_codes(gateway, at=MEANT) & set(REFUSALS)
        for at in (OTHER, "::1"):
            assert await admin_codes(gateway, at=at) == {"admin_not_here"}


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def test_the_address_counts_behind_tls(tmp_path: Path) -> None:
    certificate, private_key = make_certificate(tmp_path)
    settings: dict[str, Any] = {"tls_cert": certificate, "tls_key": private_key}
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    async with open_gateway(host=f"{MEANT},{OTHER}", admin_host=(MEANT,), **settings) as gateway:
        assert not await admin_codes(gateway, at=MEANT, ssl=unverified) & set(REFUSALS)
        assert await admin_codes(gateway, at=OTHER, ssl=unverified) == {"admin_not_here"}


@pytest.mark.parametrize(
    ("admin_host", "words"),
    [("127.0.0.1,no-such-host.invalid", "no-such-host.invalid"), ("0.0.0.0", "0.0.0.0"), ("127.0.0.1,::", "::")],
)
async def test_addresses_that_cannot_be_meant_are_told_in_one_line(admin_host: str, words: str) -> None:
    settings = {"ROUNDHOUSE_PORT": "0", "ROUNDHOUSE_RESPONSES_RETENTION_H": "0"}
    code, said = await ended(await start(ROUNDHOUSE_ADMIN_HOST=admin_host, **settings))
    assert (code, said.count("\n")) == (2, 1), said
    assert f"ROUNDHOUSE_ADMIN_HOST: {words}" in said


async def test_a_state_folder_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "streams").write_text("a file in the place of a folder")
    settings = {"ROUNDHOUSE_PORT": "0", "ROUNDHOUSE_STATE": str(tmp_path)}
    code, said = await ended(await start(**settings))
    assert (code, said.count("\n")) == (2, 1), said
    assert f"{tmp_path}/streams: " in said
