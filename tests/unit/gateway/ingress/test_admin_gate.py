"""Who may use a route, and at which address: a table of what is refused with which code."""

from __future__ import annotations

from hashlib import sha256
from ipaddress import ip_address
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from controller.schema.keys import Key
from gateway.ingress.admin_gate import AdminGate, parse_address
from gateway.tenancy.api_keys import ANONYMOUS, Caller


def caller(*scopes: Any) -> Caller:
    return Caller.of(Key(name="k", tenant="t", sha256=sha256(b"s").hexdigest(), scopes=scopes))


USER, BOSS = caller("inference"), caller("admin")
OPEN, CLOSED = AdminGate(None, is_open=True), AdminGate(None, is_open=False)
MEANT = AdminGate(["10.0.0.1", "::1"], is_open=True)


def verdict(gate: AdminGate, who: Caller, scope: Any, local_address: str | None = "10.0.0.9") -> str:
    try:
        gate.authorize_request(who, scope, local_address)
    except RoundhouseError as error:
        return error.entry.code
    return "accepted"


@pytest.mark.parametrize("gate", [OPEN, CLOSED])
def test_with_keys_scopes_rule(gate: AdminGate) -> None:
    assert verdict(gate, USER, "inference") == verdict(gate, BOSS, "admin") == "accepted"
    assert verdict(gate, USER, "admin") == verdict(gate, BOSS, "inference") == "scope_required"


def test_without_keys_everybody_administers_where_that_is_open() -> None:
    assert verdict(OPEN, ANONYMOUS, "admin") == "accepted"
    assert verdict(CLOSED, ANONYMOUS, "admin") == "admin_closed"
    assert verdict(CLOSED, ANONYMOUS, "inference") == "accepted"


@pytest.mark.parametrize("who", [ANONYMOUS, BOSS])
@pytest.mark.parametrize(
    ("local_address", "answer"),
    [
        ("10.0.0.1", "accepted"),
        ("::ffff:10.0.0.1", "accepted"),
        ("::1", "accepted"),
        ("0:0:0:0:0:0:0:1", "accepted"),
        ("10.0.0.2", "admin_not_here"),
        ("::ffff:10.0.0.2", "admin_not_here"),
        ("::2", "admin_not_here"),
        ("127.0.0.1", "admin_not_here"),
        ("", "admin_not_here"),
        ("/run/gateway.sock", "admin_not_here"),
        (None, "admin_not_here"),
    ],
)
def test_admin_requests_are_taken_where_they_are_meant_to_arrive(
    who: Caller, local_address: str | None, answer: str
) -> None:
    assert verdict(MEANT, who, "admin", local_address) == answer
    assert verdict(OPEN, who, "admin", local_address) == "accepted"


def test_inference_is_taken_anywhere() -> None:
    assert verdict(MEANT, USER, "inference", "10.0.0.2") == "accepted"
    assert verdict(MEANT, ANONYMOUS, "inference", None) == "accepted"


def test_what_is_no_address_is_never_one_that_is_meant() -> None:
    gate = AdminGate(["gateway.egress"], is_open=True)
    for local_address in ("gateway.egress", "", None, "10.0.0.1"):
        assert verdict(gate, BOSS, "admin", local_address) == "admin_not_here"
    assert verdict(AdminGate([], is_open=True), BOSS, "admin", "10.0.0.1") == "admin_not_here"


def test_whoever_is_refused_is_told_the_first_thing_first() -> None:
    gate = AdminGate([], is_open=False)
    assert verdict(gate, USER, "admin") == "scope_required"
    assert verdict(gate, ANONYMOUS, "admin") == "admin_closed"
    assert verdict(gate, BOSS, "admin") == "admin_not_here"


def test_a_refusal_says_what_is_closed_and_no_address() -> None:
    with pytest.raises(RoundhouseError, match="without keys nobody may administer"):
        CLOSED.authorize_request(ANONYMOUS, "admin", "10.0.0.1")
    with pytest.raises(RoundhouseError, match="no admin requests at the address at which this one arrived") as told:
        MEANT.authorize_request(BOSS, "admin", "10.0.0.2")
    assert "10.0.0" not in told.value.message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:a00:1", "10.0.0.1"),
        ("fd00::1", "fd00::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert parse_address(text) == ip_address(address)


@pytest.mark.parametrize("text", ["", "localhost", "10.0.0", "/run/x.sock"])
def test_what_is_no_address(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize(
    ("gate", "who", "local_address", "allows"),
    [
        (OPEN, ANONYMOUS, None, True),
        (CLOSED, ANONYMOUS, None, False),
        (OPEN, USER, "10.0.0.1", False),
        (CLOSED, BOSS, "10.0.0.9", True),
        (MEANT, BOSS, "10.0.0.1", True),
        (MEANT, BOSS, "10.0.0.2", False),
    ],
)
def test_who_may_administer(gate: AdminGate, who: Caller, local_address: str | None, allows: bool) -> None:
    assert gate.allows_admin(who, local_address) is allows
