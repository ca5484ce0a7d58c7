"""Clients without keys: by what they call themselves, and their limits."""

from __future__ import annotations

import pytest

from controller.schema.errors import RoundhouseError
from controller.schema.keys import Key
from gateway.tenancy.api_keys import ANONYMOUS, KeyRing
from gateway.tenancy.clients import LONGEST_CLIENT_ID, ClientDirectory, ClientLimits, client_id_of
from gateway.tenancy.rate_limits import REMEMBERED_CLIENTS, RateLimits, client_headers

TWO = ClientLimits(requests_per_minute=2)
NO_KEYS = KeyRing.of(())


def headers(client_id: str | None = None, agent: str | None = None) -> list[tuple[bytes, bytes]]:
    pairs = ((b"host", "h"), (b"user-agent", agent), (b"x-client-id", client_id))
    return [(name, value.encode()) for name, value in pairs if value is not None]


@pytest.mark.parametrize(
    ("sent", "client_id"),
    [
        (headers("ci", "curl/8"), b"ci"),
        ([*headers("ci"), (b"user-agent", b"curl/8")], b"ci"),
        (headers(agent="curl/8"), b"curl/8"),
        (headers(), b"anonymous"),
        (headers("", "curl/8"), b"anonymous"),
        ([(b"x-client-id", b"a\x1b[31m\xff b ")], b"a[31m b"),
        (headers("x" * 300), b"x" * LONGEST_CLIENT_ID),
    ],
)
def test_a_client_is_what_it_calls_itself(sent: list[tuple[bytes, bytes]], client_id: bytes) -> None:
    assert client_id_of(sent) == client_id


def test_without_limits_everybody_is_one_caller() -> None:
    assert ClientDirectory(ClientLimits()).find_caller(headers("ci")) is ANONYMOUS


def test_a_limited_client_is_anybody_else_by_its_rights() -> None:
    caller = ClientDirectory(TWO).find_caller(headers("ci"))
    assert (caller.name, caller.tenant, caller.scopes) == (None, ANONYMOUS.tenant, ANONYMOUS.scopes)
    assert (caller.client_id, caller.is_limited, caller.requests_per_minute) == (b"ci", True, 2)
    assert (caller.tokens_per_minute, caller.concurrency) == (None, None)
    assert NO_KEYS.renew_caller(caller, 0.0) is caller
    assert client_headers(caller) == [(b"x-ratelimit-client", b"ci")]


@pytest.mark.parametrize(
    ("client_limits", "words"),
    [
        (TWO, "2 request(s) per minute"),
        (ClientLimits(concurrency=2), "2 request(s) at a time"),
        (ClientLimits(tokens_per_minute=20), "20 token(s) per minute"),
    ],
)
def test_each_client_has_limits_of_its_own(client_limits: ClientLimits, words: str) -> None:
    limits, clients = RateLimits(), ClientDirectory(client_limits)
    for name in ("a", "b"):
        for _ in range(2):
            limits.admit_request(clients.find_caller(headers(name)), 10, 0.0)
        with pytest.raises(RoundhouseError) as refused:
            limits.admit_request(clients.find_caller(headers(name)), 10, 0.0)
        assert refused.value.entry.code == "rate_limit_exceeded"
        assert refused.value.message == f"The client '{name}' has reached its limit of {words}."


def test_counts_outlive_a_table_without_keys_and_end_with_one_that_has_some() -> None:
    limits, clients = RateLimits(), ClientDirectory(ClientLimits(concurrency=1))
    entry = limits.admit_request(clients.find_caller(headers("a")), 0, 0.0)
    limits.follow_keys(NO_KEYS, 0.0)
    with pytest.raises(RoundhouseError):
        limits.admit_request(clients.find_caller(headers("a")), 0, 0.0)
    limits.follow_keys(KeyRing.of((Key(name="a", tenant="a", sha256=b"0" * 64, concurrency=1),)), 0.0)
    assert limits.count_inflight("a") == 0, "a client is no key of its name"
    limits.follow_keys(NO_KEYS, 0.0)
    limits.admit_request(clients.find_caller(headers("a")), 0, 0.0)
    entry.release_request(0.0, 0)


def test_names_without_end_are_not_remembered_without_end() -> None:
    limits, clients = RateLimits(), ClientDirectory(ClientLimits(requests_per_minute=1, concurrency=2))
    staying = clients.find_caller(headers("stays"))
    entry = limits.admit_request(staying, 0, 0.0)
    for number in range(2 * REMEMBERED_CLIENTS):
        limits.admit_request(clients.find_caller(headers(f"c{number}")), 0, 0.0).release_request(0.0, 0)
    assert limits.client_count <= REMEMBERED_CLIENTS
    with pytest.raises(RoundhouseError):
        limits.admit_request(staying, 0, 0.0)
    entry.release_request(0.0, 0)
