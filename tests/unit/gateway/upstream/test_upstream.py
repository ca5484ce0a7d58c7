"""Connections kept: which are closed when, and that one on its way out is offered to nobody."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from gateway.upstream.connection import ConnectionPool, Origin
from gateway.upstream.target import Address, head_of, target_of
from tests.support.engine_calls import endpoint


class FakeConnection:
    """Notes that it was closed; the pool is told later, as with a real one."""

    def __init__(self, origin: Origin[FakeConnection]) -> None:
        self.origin = origin
        self.idle_round = 0
        self.closed = False

    def abort(self) -> None:
        """Close it."""
        self.closed = True

    def drop(self) -> None:
        """Close it."""
        self.closed = True


async def test_what_is_idle_for_two_rounds_is_closed_and_withdrawn_at_once() -> None:
    pool: ConnectionPool[FakeConnection] = ConnectionPool()
    origin = pool.origin_of(Address(tls=False, host="h", port=1))
    old, young = FakeConnection(origin), FakeConnection(origin)
    for connection in (old, young):
        pool.add_connection(connection)
    pool.keep_idle(old)
    pool._sweep()
    pool.keep_idle(young)
    pool._sweep()
    assert (old.closed, young.closed, origin.idle_connections) == (True, False, [young])
    pool.remove_connection(old)
    assert (pool.open_count, pool.idle_count) == (1, 1)
    pool._sweep()
    pool.remove_connection(young)
    assert (young.closed, pool.open_count, pool.idle_count) == (True, 0, 0)
    assert pool._timer is None, "no timer while nothing is idle"
    await pool.close()


async def test_an_origin_is_forgotten_once_no_connection_leads_to_it() -> None:
    pool: ConnectionPool[FakeConnection] = ConnectionPool()
    used, awaited, unused = (pool.origin_of(Address(tls=False, host="h", port=port)) for port in (1, 2, 3))
    pool.add_connection(FakeConnection(used))
    pool.forget_unused([awaited])
    assert pool.origin_of(used.address) is used
    assert pool.origin_of(awaited.address) is awaited
    assert pool.origin_of(unused.address) is not unused


@pytest.mark.parametrize(
    ("base_url", "api_prefix", "path", "address", "host", "target"),
    [
        ("http://h:1", "/v1", "/v1/x", Address(False, "h", 1), b"h:1", b"/v1/x"),
        ("http://h", "/v1", "/tokenize", Address(False, "h", 80), b"h", b"/tokenize"),
        ("https://H.example", "", "/v1/x?y=z", Address(True, "h.example", 443), b"H.example", b"/x?y=z"),
        ("https://h:80/base/v1", "", "/v1/x", Address(True, "h", 80), b"h:80", b"/base/v1/x"),
        ("http://h:443/base", "/openai", "/v1/x", Address(False, "h", 443), b"h:443", b"/base/openai/x"),
        ("http://[::1]:8080", "/v1", "/v1", Address(False, "::1", 8080), b"[::1]:8080", b"/v1"),
        ("HTTP://rh_a.b-c", "/v1", "/v1/", Address(False, "rh_a.b-c", 80), b"rh_a.b-c", b"/v1/"),
    ],
)
def test_an_endpoint_leads_to_address_host_and_target(
    base_url: str, api_prefix: str, path: str, address: Address, host: bytes, target: bytes
) -> None:
    read = target_of(endpoint(base_url, api_prefix=api_prefix))
    lines = head_of(read, "POST", path).split(b"\r\n")
    assert read.address == address
    assert lines[:2] == [b"POST %b HTTP/1.1" % target, b"host: %b" % host]
    assert lines[-1] == b"", "it ends with a whole line"
    assert b"" not in lines[:-1]


@pytest.mark.parametrize(
    "base_url",
    [
        *("", "h:80", "ftp://h", "http://", "http://:80", "http://h:", "http://h:0", "http://h:65536", "http://h:8o"),
        *("http://user@h", "http://user:hunter2@h", "http://h ", " http://h", "http://h/a b", "http://h\r\nx: y"),
        *("http://h/\r\nx: y", "http://h\n", "http://h\x00", "http://h/?a=b", "http://h/#a", "http://h?a=b"),
        *("http://h\\@x", "http://[::1", "http://::1", "http://hé", "http://h/é", "http://h:\N{FULLWIDTH DIGIT ONE}"),
    ],
)
def test_a_base_url_that_cannot_be_used(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as refused:
        target_of(endpoint(base_url))
    assert "hunter2" not in str(refused.value)


def test_a_token_goes_as_the_bearers() -> None:
    with_token = target_of(endpoint("http://h", token=SecretStr("t-1")))
    assert b"\r\nauthorization: Bearer t-1\r\n" in head_of(with_token, "GET", "/")
    assert b"authorization" not in head_of(target_of(endpoint("http://h")), "GET", "/")


@pytest.mark.parametrize("token", ["a\r\nb: c", "a\n", "a\x00", "é", " secret", "secret "])
def test_a_token_that_cannot_be_used_is_refused_and_not_told(token: str) -> None:
    with pytest.raises(ValueError, match="its token holds characters") as refused:
        target_of(endpoint("http://h", token=SecretStr(token)))
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", path) for path in ("", "x", "/a b", "/a\r\nx: y", "/a#b", "/é")),
        *((method, "/") for method in ("post", "", "GET /x", "GET\r\n")),
    ],
)
def test_a_request_line_that_would_not_be_one(method: str, path: str) -> None:
    with pytest.raises(ValueError, match="must not"):
        head_of(target_of(endpoint("http://h")), method, path)
