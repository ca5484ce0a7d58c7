"""Addresses: which ones a list of hosts comes to, sockets that are bound to them, and where controllers are asked."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from common import listening
from common.internal_server import ListeningServer, open_listener
from common.listening import (
    HostAddress,
    ListenError,
    bind_listeners,
    is_loopback,
    pick_local_host,
    resolve_host,
    select_addresses,
    split_hosts,
    split_listen_address,
)
from common.program_client import ProgramAddress
from tests.support.ports import free_port
from tests.support.wait import until

ELSEWHERE = "203.0.113.1"
"""An address of no machine (RFC 5737)."""


def of_ipv4(ip: str, host: str | None = None) -> HostAddress:
    return HostAddress(host or ip, socket.AF_INET, (ip, 0))


def of_ipv6(ip: str, host: str | None = None) -> HostAddress:
    return HostAddress(host or ip, socket.AF_INET6, (ip, 0, 0, 0))


def bound(hosts: list[str], port: int = 0) -> list[Any]:
    """Where sockets are bound for these hosts; they are closed."""
    with ExitStack() as stack:
        return [stack.enter_context(each).getsockname()[:2] for each in bind_listeners(hosts, port)]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("127.0.0.1", ("127.0.0.1",)), (" a.b ,10.0.0.1,, ::1,a.b", ("a.b", "10.0.0.1", "::1"))],
)
def test_hosts_of_a_setting(text: str, hosts: tuple[str, ...]) -> None:
    assert split_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_a_setting_without_a_host_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match="names no address"):
        split_hosts(text)


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example")),
    ],
)
def test_loopback_hosts_are_recognised(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


@pytest.mark.parametrize(
    ("hosts", "local"),
    [
        (["10.0.0.1"], "10.0.0.1"),
        (["gateway.egress", "gateway.support", "127.0.0.1"], "127.0.0.1"),
        (["gateway.egress", "gateway.support"], "gateway.egress"),
        (["0.0.0.0"], "127.0.0.1"),
        (["::"], "::1"),
        (["10.0.0.1", "0.0.0.0"], "127.0.0.1"),
        (["0.0.0.0", "127.0.0.2"], "127.0.0.2"),
    ],
)
def test_where_a_client_of_this_machine_asks(hosts: list[str], local: str) -> None:
    assert pick_local_host(hosts) == local


def test_a_wildcard_stands_for_the_addresses_of_its_family_only() -> None:
    all_ipv4, all_ipv6 = of_ipv4("0.0.0.0"), of_ipv6("::")
    some = [of_ipv4("127.0.0.1"), of_ipv6("::1"), of_ipv4("10.0.0.1")]
    assert select_addresses(some) == some
    assert select_addresses([*some, all_ipv4]) == [of_ipv6("::1"), all_ipv4]
    assert select_addresses([all_ipv6, *some]) == [all_ipv6, of_ipv4("127.0.0.1"), of_ipv4("10.0.0.1")]
    assert select_addresses([all_ipv4, *some, all_ipv6]) == [all_ipv4, all_ipv6]


def test_an_address_that_two_names_stand_for_is_bound_once_and_keeps_its_first_place() -> None:
    twice = [of_ipv4("127.0.0.1", "one"), of_ipv4("10.0.0.1"), of_ipv4("127.0.0.1", "two")]
    assert select_addresses(twice) == twice[:2]


def test_addresses_that_are_written_as_such_are_their_own() -> None:
    assert resolve_host("127.0.0.2") == [of_ipv4("127.0.0.2")]
    assert resolve_host("::1") == [of_ipv6("::1")]
    assert {each.ip for each in resolve_host("localhost")} >= {"127.0.0.1"}


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 64, "a..b", "two words"])
def test_a_name_that_stands_for_nothing_is_named(name: str) -> None:
    with pytest.raises(ListenError) as told:
        bind_listeners(["127.0.0.1", name], 0)
    assert (told.value.host, told.value.is_unresolved) == (name, True)
    assert str(told.value)


def test_all_get_the_same_port() -> None:
    port = free_port()
    assert bound(["127.0.0.2", "127.0.0.3"], port) == [("127.0.0.2", port), ("127.0.0.3", port)]
    (one, first_port), (other, other_port) = bound(["127.0.0.2", "127.0.0.3"])
    assert (one, other, first_port > 0, first_port == other_port) == ("127.0.0.2", "127.0.0.3", True, True)
    assert len(bound(["127.0.0.2", "0.0.0.0"])) == 1


def test_all_addresses_of_both_families_can_be_had_at_once() -> None:
    with ExitStack() as stack:
        for listener in bind_listeners(["0.0.0.0", "::"], 0):
            stack.enter_context(listener).listen(1)  # they would be in each other's way here


def test_a_taken_address_is_named_and_the_others_are_left() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.3", port)), pytest.raises(ListenError) as told:
        bind_listeners(["127.0.0.2", "127.0.0.3"], port)
    error = told.value
    assert (error.host, str(error), error.is_unresolved) == ("127.0.0.3", "Address already in use", False)
    with socket.create_server(("127.0.0.2", port)):
        pass


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ListenError, match="Cannot assign requested address") as told:
        bind_listeners(["127.0.0.1", ELSEWHERE], 0)
    assert told.value.host == ELSEWHERE


def names(monkeypatch: pytest.MonkeyPatch, **ips: list[str]) -> None:
    """Let names stand for these addresses."""
    monkeypatch.setattr(listening, "resolve_host", lambda host: [of_ipv4(ip, host) for ip in ips.get(host, [host])])


def test_of_a_names_addresses_those_of_other_machines_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, shared=[ELSEWHERE, "127.0.0.2"], foreign=[ELSEWHERE, "203.0.113.2"])
    assert [ip for ip, _ in bound(["shared", "127.0.0.3"])] == ["127.0.0.2", "127.0.0.3"]
    with pytest.raises(ListenError) as told:
        bind_listeners(["127.0.0.1", "foreign"], 0)
    assert told.value.host == f"foreign ({ELSEWHERE})"


def test_a_free_port_is_looked_for_until_all_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bind, refusals = listening._bind, 3
    tried: list[tuple[str, int]] = []

    def bind_or_refuse(address: HostAddress, port: int, *, only_ipv6: bool) -> socket.socket:
        tried.append((address.ip, port))
        if address.ip == "127.0.0.3" and len(tried) <= 2 * refusals:
            raise OSError(errno.EADDRINUSE, "taken")
        return bind(address, port, only_ipv6=only_ipv6)

    monkeypatch.setattr(listening, "_bind", bind_or_refuse)
    (_, port), (_, other_port) = bound(["127.0.0.2", "127.0.0.3"])
    assert port == other_port
    assert [chosen for ip, chosen in tried if ip == "127.0.0.2"] == [0] * (refusals + 1)

    refusals = 1000
    with pytest.raises(ListenError, match="Address already in use"):
        bind_listeners(["127.0.0.2", "127.0.0.3"], 0)


def test_no_part_of_an_answer_waits_for_an_acknowledgement() -> None:
    """Connections inherit it. Else an answer in two parts takes 40 ms on an event loop that does not set it."""
    with ExitStack() as stack:
        listeners = [*bind_listeners(["127.0.0.1"], 0), open_listener(("127.0.0.1", 0))]
        for listener in map(stack.enter_context, listeners):
            listener.listen()
            listener.setblocking(True)
            stack.enter_context(socket.create_connection(listener.getsockname()))
            connection = stack.enter_context(listener.accept()[0])
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_nobody_connects_to_a_listener_before_it_serves() -> None:
    """Whoever did would wait for an answer without bound."""
    with open_listener(("127.0.0.1", 0)) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname())


async def test_a_listener_that_another_program_was_faster_with_is_an_error() -> None:
    with open_listener(("127.0.0.1", 0)) as first, open_listener(first.getsockname()) as second:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            ListeningServer(None, second.getsockname(), second)


def test_a_listener_binds_ipv6_addresses_too() -> None:
    with open_listener(("::1", 0)) as listener:
        assert listener.getsockname()[0] == "::1"


def test_what_is_listened_on_in_parts() -> None:
    assert split_listen_address("unix:a:b") == Path("a:b")
    assert split_listen_address("[::1]:80") == ("::1", 80)
    with pytest.raises(ValueError, match="must be"):
        split_listen_address("::1")
    with pytest.raises(ValueError, match="names no path"):
        split_listen_address("unix:")


def test_where_a_controller_is_asked() -> None:
    assert ProgramAddress.parse("http://c:1/") == ProgramAddress("http://c:1")
    assert ProgramAddress.parse("unix:/run/c.sock") == ProgramAddress("http://socket", "/run/c.sock")


@pytest.mark.parametrize("url", ["controller:8081", "http://", "http:///", "http:c:1", "unix:", "ftp://x", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="unix:/path"):
        ProgramAddress.parse(url)


def test_the_token_is_read_each_time_and_shown_on_ports_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    port = ProgramAddress.parse("http://c:1", file)
    assert port.read_headers() == ProgramAddress.parse("http://c:1").read_headers() == {}
    for token in ("first-" * 8, "second-" * 8):
        file.write_text(token + "\n")
        assert port.read_headers() == {"x-roundhouse-gateway-token": token}
    assert ProgramAddress.parse("unix:/run/c.sock", file).read_headers() == {}


async def test_what_ends_a_server_or_its_watch_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    server = ListeningServer(None, path, open_listener(path))
    monkeypatch.setattr("common.internal_server.RECHECK_S", 0)
    monkeypatch.setattr("common.internal_server._inode_of", lambda _: dict[str, int]()["a defect"])
    await until("the watch has failed", lambda: "a defect" in caplog.text)
    await server.close()
    assert "not served any more" in caplog.text
