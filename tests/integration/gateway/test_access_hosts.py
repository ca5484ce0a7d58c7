"""Odd Hosts on every route of the gateway, with every sort of key: no Host changes what is let in."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pytest

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, gateway_harness
from tests.support.access_asker import ENDLESS, Asker, filled_in, guarded, some_of, verdict
from tests.support.access_table import find_expected, list_expected
from tests.support.raw_http import Answer, raw

WELL_FORMED_HOSTS: Final = (b"localhost:99999", b"..", b"a" * 4000)
HOSTS: Final = (
    *WELL_FORMED_HOSTS,
    b"localhost/health",
    b"localhost/v1/admin/plan?",
    b"localhost?/health",
    b"localhost#",
    b"localhost:1/health#",
    b"/health",
    b"?",
    b"#/health",
    b"user@localhost",
    b"user:password@localhost/health?@",
    b"@",
    b"local host",
    b"local\thost",
    b"[",
    b"]",
    b"[::1",
    b"[::1%25/health]",
    b"localhost:port",
    b"\\\\localhost\\health",
    b"http://localhost/health",
    b"%2e%2e/health",
    b"\xff\x80",
    "\u2100.example".encode(),
)


def status_and_message(answer: Answer) -> tuple[int, str]:
    """Status, and the message of a refusal; those of the MCP library are plain text."""
    if answer.status < 400:
        return answer.status, ""
    return answer.status, answer.error["message"] if answer.all("content-type") else answer.body.decode()


@pytest.mark.parametrize("who", ["", "inference", "admin"])
async def test_no_host_changes_a_verdict(who: str) -> None:
    """With keys the Host header says nothing of what is let in, nor of what the answer is; what is no Host is the same
    error on every route that is not open, with every key."""
    routes = {(method, filled_in(path)) for method, path in list_expected() if method not in ("*", "HEAD")}
    routes -= {ENDLESS}
    routes |= {("GET", "/v1/admin/plan"), ("GET", "/nowhere"), ("PUT", "/props"), ("GET", "/v1/admin%0a/plan")}
    async with guarded() as (gateway, _), contextlib.AsyncExitStack() as stack:
        asker = Asker(gateway, stack)
        for turn, (method, path) in enumerate(sorted(routes)):
            refusal = verdict(find_expected(method, path.replace("%0a", "\n")), who)
            plain = await asker.request(method, path, who)
            assert refusal == ((plain.status, plain.error["code"]) if plain.status in (401, 403) else None), path
            hosts = some_of(HOSTS, turn, who)
            answers = await asker.request_all([(method, path, host) for host in hosts], who)
            for host, answer in zip(hosts, answers, strict=True):
                is_open = find_expected(method, path.replace("%0a", "\n")) in ("open", "metrics")
                if host not in WELL_FORMED_HOSTS and not is_open:
                    assert (answer.status, answer.error["code"]) == (400, "invalid_request"), (method, path, host)
                    continue
                assert status_and_message(answer) == status_and_message(plain), (method, path, host)


@pytest.mark.parametrize("is_open", [False, True])
async def test_without_keys_an_odd_host_is_foreign_on_every_route(is_open: bool) -> None:
    settings: dict[str, Any] = {"host": "0.0.0.0", "open": True} if is_open else {}
    odd = [host for host in (*HOSTS, b"[::1%@evil.example]", b"[fe80::1%?]:80") if host != b"localhost:99999"]
    async with gateway_harness(engine_state_routes=True, **settings) as gateway, engines(1) as (engine,):
        await gateway.publish(route("org/m", [engine.url]))
        async with contextlib.AsyncExitStack() as stack:
            asker = Asker(gateway, stack)
            for declared_method, path in list_expected():
                method = {"*": "POST", "HEAD": "GET"}.get(declared_method, declared_method)
                answers = await asker.request_all([(method, filled_in(path), host) for host in odd], "")
                for host, answer in zip(odd, answers, strict=True):
                    if find_expected(method, filled_in(path)) in ("open", "metrics"):
                        assert answer.status == 200, (path, host)
                    else:
                        assert (answer.status, answer.error["code"]) == (403, "forbidden_host"), (path, host)
        assert not engine.client_requests
        assert not gateway.controller.admin.requests


@pytest.mark.parametrize("control", [b"\0", b"\x01", b"\x0b", b"\x1f", b"\x7f", b"\r", b"\n"])
async def test_a_host_with_a_control_character_is_no_request(control: bytes) -> None:
    async with guarded() as (gateway, engine):
        for path in ("/v1/admin/plan", "/v1/models", "/health"):
            async with raw(gateway) as client:
                client.write(f"GET {path} HTTP/1.1\r\n".encode() + b"host: local" + control + b"host\r\n\r\n")
                assert (await client.answer()).status == 400
        assert not engine.client_requests
        assert not gateway.controller.admin.requests
